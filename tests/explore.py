"""Search at random for examples that break a property: make explore.

Each round tries every property with examples that follow from the round's seed, in an order that
does too. The first round that fails ends the search, and says how to repeat it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from random import SystemRandom

EXAMPLES = 100
"""Examples of a property in a round."""

_NO_TESTS = 5  # pytest's exit code


def search(seconds: float, seed: int | None, arguments: Sequence[str]) -> int:
    """The exit code of the last round. With a seed there is one round, whatever it takes."""
    until_s = time.monotonic() + seconds
    while True:
        of_round = SystemRandom().getrandbits(32) if seed is None else seed
        environment = {
            **os.environ,
            "PENSTOCK_PROFILE": "explore",
            "PENSTOCK_EXAMPLES": os.environ.get("PENSTOCK_EXAMPLES", str(EXAMPLES)),
            "PENSTOCK_EXPLORE_SEED": str(of_round),
        }
        if seed is None:
            environment["PENSTOCK_EXPLORE_UNTIL"] = str(until_s)
        command = [sys.executable, "-m", "pytest", "-m", "hypothesis and not long"]
        print(f"explore: seed {of_round}", flush=True)
        code = subprocess.run(
            [*command, f"--hypothesis-seed={of_round}", *arguments], env=environment
        ).returncode
        if code:
            tests = "" if code == _NO_TESTS else ' ARGS="-k NAME_OF_THE_TEST"'
            print(
                f"explore: seed {of_round} ended with code {code}: make explore SEED={of_round}"
                f"{tests} repeats it; keep the example that is printed above as an @example",
                flush=True,
            )
        if code or seed is not None or time.monotonic() > until_s:
            return code


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="when to end (default: 300)")
    parser.add_argument("--seed", type=int, help="repeat the round of this seed")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --")
    told = parser.parse_args()
    return search(told.seconds, told.seed, told.arguments)


if __name__ == "__main__":
    sys.exit(main())
