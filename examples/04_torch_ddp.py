"""Train on any number of ranks and resume; start with: torchrun --nproc-per-node=2 04_torch_ddp.py

Without torchrun it is one rank of one. No DistributedSampler, no set_epoch: ranks share each epoch,
and a state of five batches continues on another number of ranks too.
"""

import os
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from penstock.torch.loader import DataLoader


class Line(torch.utils.data.Dataset[Any]):
    """Any map-style dataset: points of y = 2x + 1."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([i / 1000])
        return x, 2 * x + 1


def loader() -> DataLoader:
    return DataLoader(Line(), shuffle=True, seed=1, global_batch_size=40, num_workers=2)


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(1, 1)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def train(batches: DataLoader, steps: int) -> dict[str, Any]:
        """So many steps, and where the loader stands then."""
        for x, y in batches:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            steps -= 1
            if steps == 0:
                break
        return batches.state_dict()

    state = train(loader(), 5)
    resumed = loader()  # as after a restart: the model would come from its checkpoint
    resumed.load_state_dict(state)
    print(
        "resumed in epoch", resumed.state_dict()["epoch"], "at step", resumed.state_dict()["step"]
    )
    train(resumed, len(resumed))
    for _ in range(9):
        train(resumed, len(resumed))
    weight, bias = (float(p.detach().squeeze()) for p in model.parameters())
    print(f"epoch {resumed.state_dict()['epoch']}: y = {weight:.1f} x + {bias:.1f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
