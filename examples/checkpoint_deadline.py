"""Train until SIGTERM comes, and end within the time that is given then, whatever storage does.

    python checkpoint_deadline.py /shared/run --grace 30

What is under way is finished, and the last steps are saved, if there is time. Storage that hangs
is given up: the last checkpoint that was committed stands. With several ranks all do so, from the
same step on.
"""

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

import numpy as np

from penstock.checkpoint import Checkpoints
from penstock.errors import StalledError, StorageError

EVERY = 10
ABANDON_S = 1.0
"""The part of the grace that giving up may take."""


def end(checkpoints: Checkpoints, step: int, weights: np.ndarray, until_s: float) -> str:
    """The outcome of the run, which ends at a time of the monotonic clock."""
    try:
        checkpoints.wait(max(0.0, until_s - ABANDON_S - time.monotonic()))
        checkpoints.save(step, {"weights": weights})
        checkpoints.wait(max(0.0, until_s - ABANDON_S - time.monotonic()))
    except StalledError as stalled:
        print(stalled, file=sys.stderr)
        with contextlib.suppress(StalledError):  # the process can end all the same
            checkpoints.abandon(max(0.0, until_s - time.monotonic()))
        return "gave up"
    except StorageError as failed:
        print(failed, file=sys.stderr)
        return "failed"
    return f"saved step {step}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("folder", type=Path, help="for checkpoints")
    arguments.add_argument("--grace", type=float, default=30, help="seconds from SIGTERM on")
    given = arguments.parse_args()
    asked: list[int] = []  # no Event: one that is waited for must not be set by a handler
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))

    step, weights = 0, np.zeros(1000)
    with Checkpoints(given.folder, busy="skip") as checkpoints:
        if found := checkpoints.latest():
            step, weights = found.step, found.state["weights"]
        print(f"begins after step {step}", flush=True)
        while not asked:
            time.sleep(0.001)  # a step of training takes longer
            weights += 1
            step += 1
            if step % EVERY == 0:
                checkpoints.save(step, {"weights": weights})
        print(end(checkpoints, step, weights, time.monotonic() + given.grace), flush=True)


if __name__ == "__main__":
    main()
