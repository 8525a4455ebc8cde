"""Parts of the trainer_*.py: a data set, the options of a run, and the check of what it saw.

Each script is a job that is killed after N steps, and the same job started again:

    python examples/trainer_NAME.py FOLDER --stop-after N
    python examples/trainer_NAME.py FOLDER --resume
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

import penstock
from penstock.torch import DataLoader

EPOCHS, BATCH = 2, 8


def decode(sample):
    """Points of y = 2x + 1, and which point it is, so that the model can say what it was given."""
    x = sample["data"]
    return {"x": x, "y": 2 * x + 1, "number": sample["__id__"]}


class Run:
    """Folder and options of a run. `seen` is a file with the samples of each step, of all runs."""

    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("--stop-after", type=int)
        parser.add_argument("--resume", action="store_true")
        options = parser.parse_args()
        self.folder, self.stop_after = options.folder, options.stop_after
        self.resume = options.resume
        self.seen = self.folder / "seen.jsonl"
        path = self.folder / "points.npy"
        if not self.resume:
            self.folder.mkdir(exist_ok=True)
            np.save(path, np.arange(40, dtype=np.float32)[:, None] / 40)
            self.seen.write_text("")
        self.dataset = penstock.open(path)

    def note(self, numbers):
        """Note the samples of a step, or die as by `kill -9` where this step should not be."""
        with self.seen.open("a+") as file:
            file.seek(0)
            steps = len(file.readlines())
            if steps == self.stop_after:
                print(f"killed after step {steps}", flush=True)
                os._exit(1)
            print(json.dumps(np.asarray(numbers).tolist()), file=file)

    def forget(self, steps):
        """Forget the steps after so many: the job does them again."""
        self.seen.write_text("".join(self.seen.read_text().splitlines(keepends=True)[:steps]))

    def check(self):
        """Compare the samples of all runs with those of a loader that nobody stopped."""
        alone = DataLoader(self.dataset, BATCH, shuffle=True, seed=0)
        expected = [batch.ids.tolist() for _ in range(EPOCHS) for batch in alone]
        seen = [json.loads(line) for line in self.seen.read_text().splitlines()]
        print(f"{len(seen)} steps, the samples of a run that nobody stopped: {seen == expected}")
