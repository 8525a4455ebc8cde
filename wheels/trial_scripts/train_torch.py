"""A script as people have it: a dataset of their own, a model, a loop."""

from torch.utils.data import DataLoader

import torch


class Points(torch.utils.data.Dataset):
    """Points of a plane, and whether they lie in a circle."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.points = torch.rand(1000, 2, generator=generator) * 2 - 1
        self.inside = (self.points.norm(dim=1) < 0.8).float()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, number):
        return self.points[number], self.inside[number], number


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Points(), batch_size=50, shuffle=True, num_workers=2, drop_last=True)
    for epoch in range(1, 3):
        seen = []
        for points, inside, numbers in loader:
            scores = model(points).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, inside)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += numbers.tolist()
        print(f"epoch {epoch}: {len(set(seen))} of {len(seen)} samples once, loss {loss:.3f}")


if __name__ == "__main__":
    main()
