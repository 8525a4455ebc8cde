"""Train a small network on a folder of pictures, on as many ranks as there are."""

import torch.distributed as dist

import penstock
import torch
from penstock import images
from penstock.torch import DataLoader


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pictures = penstock.open("pictures")
    crop = images.RandomResizedCrop(32, (0.5, 1), flip=0.5, layout="chw", dtype="float32")
    loader = DataLoader(pictures, batch_size=16, shuffle=True, seed=0, decode=crop)
    classes = len(pictures.classes)
    layers = torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, 3):
        seen = []
        for batch in loader:
            scores = model(batch["image"])
            loss = torch.nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += batch.ids[batch.valid].tolist()
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, seen)
        if dist.get_rank() == 0:
            read = sorted(sample for each in everyone for sample in each)
            once = read == list(range(len(pictures)))
            ranks = f"{len(everyone)} ranks, {[len(each) for each in everyone]} pictures"
            print(f"epoch {epoch}: {ranks}, each once: {once}, loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
