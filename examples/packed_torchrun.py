"""JSON lines to tokens to packed rows to a language model; be killed, and go on with other ranks.

    torchrun --nproc-per-node=2 packed_torchrun.py /shared/run --killed-at 17
    torchrun --nproc-per-node=3 packed_torchrun.py /shared/run

Each document comes once an epoch, in rows that are new in each epoch and the same on any number of
ranks. Gradients are summed row by row in the order of the global batch, so that the model is the
same to the last bit, too. Needs the library tokenizers.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import penstock
import penstock.convert
import torch
from penstock.checkpoint import Checkpoints

DOCUMENTS, VOCABULARY, LENGTH, ROWS, STEPS, EVERY = 1500, 300, 128, 12, 40, 5


def write(folder: Path) -> None:
    """Documents of words, as JSON lines, and their tokens."""
    random = np.random.default_rng(0)
    words = np.array(["water", "falls", "through", "the", "penstock", "and", "turns", "a", "wheel"])
    with open(folder / "documents.jsonl", "w") as file:
        for count in random.lognormal(2.5, 1.0, DOCUMENTS).astype(int):
            file.write(json.dumps({"text": " ".join(random.choice(words, count))}) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(words.tolist(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = penstock.open(folder / "documents.jsonl")
    penstock.convert.tokenize(texts, folder / "tokens", folder / "tokenizer.json", workers=1)


def gradient(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of one row, in one dimension."""
    # -100 is what cross_entropy ignores.
    loss = torch.nn.functional.cross_entropy(model(tokens), labels, reduction="sum")
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def global_batch(part: torch.Tensor) -> torch.Tensor:
    """Rows of all ranks, in the order of the batch: rank r has each n-th row from the r-th on."""
    ranks = dist.get_world_size()
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part)
    whole = torch.empty(ranks * len(part), *part.shape[1:], dtype=part.dtype)
    for rank, each in enumerate(parts):
        whole[rank::ranks] = each
    return whole


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("folder", type=Path, help="for data and checkpoints")
    arguments.add_argument("--killed-at", type=int, help="this step ends all ranks by kill -9")
    given = arguments.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if dist.get_rank() == 0 and not (given.folder / "tokens.idx").exists():
        write(given.folder)
    dist.barrier()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    documents = penstock.open(given.folder / "tokens", index="memory")
    rows = penstock.pack(documents, LENGTH, window=256, shift_labels=True)
    loader = penstock.Loader(rows, global_batch_size=ROWS, seed=1, drop_last=True)
    step, seen = 0, ""
    with loader, Checkpoints(given.folder / "checkpoints", keep=2) as checkpoints:
        if found := checkpoints.latest():
            model.load_state_dict(found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            loader.load_state_dict(found.loader)
            step, seen = found.step, found.state["seen"]
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks begin after step {step}")

        while step < STEPS:
            for batch in loader:
                tokens, labels = (torch.from_numpy(batch[name]) for name in ("input_ids", "labels"))
                own = [gradient(model, *row) for row in zip(tokens, labels, strict=True)]
                mean, at = global_batch(torch.stack(own)).sum(dim=0) / (ROWS * LENGTH), 0
                for parameter in model.parameters():
                    parameter.grad = mean[at : at + parameter.numel()].view_as(parameter)
                    at += parameter.numel()
                optimizer.step()
                step += 1
                whole = global_batch(tokens).numpy()
                seen = hashlib.sha256(seen.encode() + whole.tobytes()).hexdigest()
                if step % EVERY == 0:
                    state: dict[str, Any] = {"model": model.state_dict(), "seen": seen}
                    state["optimizer"] = optimizer.state_dict()
                    checkpoints.save(step, state, loader=loader)
                if step == given.killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == STEPS:
                    break

    if dist.get_rank() == 0:
        result = hashlib.sha256(seen.encode())
        for tensor in model.parameters():
            result.update(tensor.detach().numpy().tobytes())
        print(f"epoch {batch.epoch}, after step {step}: {result.hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
