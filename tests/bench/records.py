"""Records of the benchmark, made up: what a run would write, with times drawn from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

HOWS = {
    "compute": "ranks x batch / computation time",
    "decode": "cores / time of one sample, 200 samples timed",
    "bandwidth": "8 threads read 4 files of 256 MiB, 2 s",
    "iops": "8 threads, 4 KiB at random, 2 s",
    "metadata": "open and close of 2,000 files",
    "copy": "one core copies 64 MiB",
}


def record(
    loaders: tuple[str, ...] = ("penstock", "torch", "mine:loader"),
    *,
    ranks: int = 4,
    epochs: int = 3,
    steps: int = 60,
    batch: int = 7,
    compute_s: float = 0.0323,
    sample_bytes: int = 1_466_006,
    wait_ms: tuple[float, ...] = (0.4, 4.0, 14.0),
    spread: float = 1.0,
    asked: float = 0.9,
    evaluation: bool = True,
    checkpoints: bool = True,
    staging_s: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """A record in which the first epoch is slower and nothing is cached before it.

    wait_ms: mean of the logarithmically normal waits of each loader; 0 is none at all.
    """
    runs = [
        _run(
            np.random.Generator(np.random.Philox(key=[seed, number])),
            loader,
            wait_ms[number % len(wait_ms)] / 1000,
            (ranks, epochs, steps, batch, compute_s, sample_bytes, spread),
            evaluation,
            checkpoints,
            staging_s,
        )
        for number, loader in enumerate(loaders)
    ]
    return {
        "penstock_bench": 1,
        "command": "penstock bench run unet3d_h100 --loader penstock --loader torch",
        "workload": {
            "framework": "pytorch",
            "model": {"name": "unet3d", "type": None},
            "workflow": {"train": True, "evaluation": evaluation, "checkpoint": checkpoints},
            "dataset": {
                "format": "npz",
                "num_files_train": ranks * steps * batch,
                "num_samples_per_file": 1,
                "record_length_bytes": sample_bytes,
                "data_folder": "/data/unet3d",
            },
            "reader": {"batch_size": batch, "read_threads": 4, "file_shuffle": "seed"},
            "train": {"epochs": epochs, "computation_time": {"mean": compute_s}, "seed": 123},
            "output": {"folder": None, "metric": {"exclude_start_steps": 1}},
            "metric": {"au": asked},
        },
        "overrides": ["++workload.dataset.data_folder=/data/unet3d"],
        "compat": False,
        "seed": 123,
        "started": "2026-06-17T10:00:00+00:00",
        "ended": "2026-06-17T10:12:00+00:00",
        "machine": {
            "host": "node-17",
            "cpu": "Xeon, 2 cores",
            "cores": 2,
            "memory_bytes": 23_500_000_000,
            "kernel": "6.18.5",
            "filesystem": "ext4 on nvme0n1",
            "load_before": 0.35,
        },
        "versions": {"penstock": "0.1.0", "python": "3.11.2", "numpy": "2.4.0"},
        "ranks": ranks,
        "hosts": 1,
        "runs": runs,
    }


def _run(
    rng: np.random.Generator,
    loader: str,
    wait_s: float,
    shape: tuple[int, int, int, int, float, int, float],
    evaluation: bool,
    checkpoints: bool,
    staging_s: float,
) -> dict[str, Any]:
    ranks, epochs, steps, batch, compute_s, sample_bytes, _ = shape
    parts = []
    for epoch in range(1, epochs + 1):
        slower = 2.5 if epoch == 1 else 1.0
        parts.append(_epoch(rng, epoch, "train", wait_s * slower, shape, checkpoints))
        if evaluation:
            few = (ranks, epochs, max(1, steps // 10), *shape[3:])
            parts.append(_epoch(rng, epoch, "eval", wait_s, few, False))
    trained = [each for each in parts if each["kind"] == "train"]
    waits = np.concatenate([np.concatenate([r["wait_s"] for r in e["ranks"]]) for e in trained])
    clock = sum(e["seconds"] for e in trained)
    raw = compute_s * steps * epochs / clock
    rate = ranks * batch * steps * epochs / clock
    waited = float(waits.mean()) * steps * epochs / clock
    barrier = float(np.mean([r["barrier_s"] for e in trained for r in e["ranks"]]))
    barrier *= steps * epochs / clock
    total = sum(e["bytes"] for e in parts)
    ceilings = {
        "compute": ranks * batch / compute_s,
        "decode": rate * 1.9,
        "bandwidth": rate * 1.06,
        "iops": rate * 30,
        "metadata": rate * 12,
        "copy": rate * 55,
    }
    ranked = sorted(ceilings, key=ceilings.__getitem__)
    return {
        "loader": loader,
        "settings": {"threads": 4, "budget": "256 MiB"},
        "startup_s": 0.21,
        "staging_s": staging_s,
        "first_batch_s": 0.05 + 10 * wait_s,
        "epochs": parts,
        "au": {"raw": raw, "ceiling": 0.992, "net": raw / 0.992},
        "samples_per_s": rate,
        "bytes_per_s": rate * sample_bytes,
        "stall_s": {
            **{f"p{q}": float(np.percentile(waits, q)) for q in (50, 95, 99)},
            "max": float(waits.max()),
            "mean": float(waits.mean()),
        },
        "cpu_s_per_1000": 0.8 + 200 * wait_s,
        "peak_rss_bytes": 420_000_000 + int(2e10 * wait_s),
        "pss_bytes": 310_000_000 + int(1e10 * wait_s),
        "device_bytes": total // epochs,
        "verified": True,
        "decomposition": {
            "storage_wait": waited,
            "barrier": barrier,
            "compute": raw,
            "other": max(0.0, 1 - raw - waited - barrier),
        },
        "dlio": {
            "train_au_percentage": [100 * raw] * epochs,
            "train_au_mean_percentage": 100 * raw,
            "train_au_meet_expectation": "success" if raw > 0.9 else "fail",
            "train_throughput_mean_samples_per_second": rate * (steps - 1) / max(1, steps - 2),
            "train_io_mean_MB_per_second": rate * sample_bytes / 2**20,
        },
        "roofline": {
            "measured": rate,
            "ceilings": [
                {"resource": name, "samples_per_s": ceilings[name], "how": HOWS[name]}
                for name in ranked
            ],
            "bound": ranked[0],
            "headroom": ceilings[ranked[1]] / ceilings[ranked[0]],
            "advice": [
                "Storage of twice the bandwidth would give 1.9 times the samples/s.",
                "More threads would not help: 8 threads reach what the path gives.",
            ],
        },
    }


def _epoch(
    rng: np.random.Generator,
    epoch: int,
    kind: str,
    wait_s: float,
    shape: tuple[int, int, int, int, float, int, float],
    checkpoints: bool,
) -> dict[str, Any]:
    ranks, _, steps, batch, compute_s, sample_bytes, spread = shape
    waits = np.zeros((ranks, steps))
    if wait_s:
        waits = rng.lognormal(np.log(wait_s), spread, (ranks, steps))
    computed = compute_s * (1 + rng.uniform(0, 0.004, (ranks, steps)))
    took = waits + computed
    barrier = took.max(axis=0) - took
    seconds = float(took.max(axis=0).sum())
    size = ranks * steps * batch * sample_bytes
    saved = []
    if checkpoints and kind == "train":
        saved = [{"step": steps, "seconds": 1.2 + float(rng.uniform(0, 0.4)), "bytes": 5 * 10**8}]
    share = size // ranks
    return {
        "epoch": epoch,
        "kind": kind,
        "started": f"2026-06-17T10:0{min(9, epoch)}:00+00:00",
        "seconds": seconds,
        "samples": ranks * steps * batch,
        "bytes": size,
        "ranks": [
            {
                "rank": rank,
                "wait_s": [round(each, 6) for each in waits[rank].tolist()],
                "compute_s": [compute_s] * steps,
                "computed_s": [round(each, 6) for each in computed[rank].tolist()],
                "barrier_s": [round(each, 6) for each in barrier[rank].tolist()],
                "samples": steps * batch,
                "bytes": share,
                "cpu_s": seconds * 0.3,
                "read_bytes": int(share * 1.01),
                "device_bytes": share if epoch == 1 and kind == "train" else 0,
            }
            for rank in range(ranks)
        ],
        "checkpoints": saved,
        "cached_before": {"cached_bytes": 0 if epoch == 1 else size, "total_bytes": size},
        "cached_after": {"cached_bytes": size, "total_bytes": size},
    }
