"""Work for the tests of shared work, and an engine and a scheduler that do it."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import penstock
from penstock.tasks import WorkPlan

LONG_AGO_NS = 10**18 + 1

SBATCH = """#!/bin/bash
# What sbatch does, here and at once: the elements of the array, one after the other.
while [[ ${1:-} == --* ]]; do options+="$1 "; shift; done
script=$(mktemp)
cat "${1:-/dev/stdin}" > $script
last=$({ echo "$options"; cat $script; } | grep -o 'array=0-[0-9]*' | head -n 1 | cut -d- -f2)
export SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=$last SLURM_ARRAY_TASK_COUNT=$((last + 1))
for element in $(seq 0 $last); do
  env SLURM_ARRAY_TASK_ID=$element bash $script "${@:2}" >> $0.log 2>&1
done
echo "Submitted batch job 1"
"""


def write_shard(folder: Path, number: int, samples: int = 5) -> Path:
    """A tar of samples with a label each, written long ago."""
    folder.mkdir(exist_ok=True)
    path = folder / f"s-{number:03}.tar"
    with tarfile.open(path, "w") as tar:
        for sample in range(samples):
            for ending, data in (("bin", bytes([number]) * (20 + sample)), ("cls", b"%d" % sample)):
                member = tarfile.TarInfo(f"{number:03}-{sample}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    for written in (path, folder):
        os.utime(written, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def index_bytes(data: Path) -> bytes:
    """The index as one process makes it, which is removed."""
    saved = penstock.open(data, index="rebuild").sidecar
    assert saved is not None
    found = Path(saved).read_bytes()
    os.unlink(saved)
    return found


def do_all(plan: WorkPlan) -> int:
    return sum(plan.do(task) for task in plan.list_missing())


class ThreadPool(ThreadPoolExecutor):
    """An engine whose workers are threads of this process."""

    def __init__(self) -> None:
        super().__init__(2)
