"""Train a small language model on tokens of `penstock tokenize`, by any number of ranks.

    torchrun --nproc-per-node=2 train.py /shared/tokens /shared/run

It goes on after the last checkpoint, also on another number of ranks. SIGTERM or SIGUSR1 to any
rank ends all of them after the step at hand: they save, and end with 75, so that the job is started
again. JobSet, Kubeflow Trainer and Slurm start it by the files beside it.
"""

import argparse
import os
import signal
import sys

import torch.distributed as dist

import penstock
import torch
from penstock.checkpoint import Checkpoints
from penstock.torch import DataLoader

WINDOW, BATCH, VOCABULARY, EVERY = 64, 16, 1024, 10
STOPPED = 75  # EX_TEMPFAIL: try again


def train(tokens: str, folder: str, steps: int, ram_bytes: int) -> bool:
    """Train, and return whether a signal stopped it before the last step."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: asked.append(number))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))

    loader = DataLoader(
        penstock.open(tokens, window=WINDOW, as_dtype="int64"),
        global_batch_size=BATCH,  # of all ranks: another number of them gets the same batches
        shuffle=True,
        seed=0,
        drop_last=True,
        cache=penstock.Cache(ram_bytes=ram_bytes),  # of each host: bytes leave the storage once
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    network = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    with Checkpoints(folder, keep=2) as checkpoints:
        if found := checkpoints.latest():
            model.load_state_dict(found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            loader.load_state_dict(found.loader)
            step = found.step
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks begin after step {step}", flush=True)
        stopped = False
        while step < steps and not stopped:
            for batch in loader:
                rows = batch["tokens"].to(device)
                logits = network(rows[:, :-1]).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                # Ranks agree at each step, so that all stop after the same one.
                told = torch.tensor([loss.item(), float(bool(asked))], device=device)
                dist.all_reduce(told)
                stopped = bool(told[1] > 0)
                if step % EVERY == 0 or stopped or step == steps:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    checkpoints.save(step, state, loader=loader)
                    if dist.get_rank() == 0:
                        mean = told[0].item() / dist.get_world_size()
                        print(f"step {step}: loss {mean:.4f}", flush=True)
                if stopped or step == steps:
                    break
    dist.barrier()  # a rank that ends first takes the group from those that still use it
    loader.close()
    return stopped


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("tokens", help="what penstock tokenize wrote, without .bin and .idx")
    arguments.add_argument("folder", help="for checkpoints")
    arguments.add_argument("--steps", type=int, default=1000)
    arguments.add_argument("--ram-bytes", type=int, default=256 << 20, help="of each host's cache")
    given = arguments.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    stopped = train(given.tokens, given.folder, given.steps, given.ram_bytes)
    dist.destroy_process_group()
    sys.exit(STOPPED if stopped else 0)


if __name__ == "__main__":
    main()
