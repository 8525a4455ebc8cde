"""Write what each test costs: pytest -p tests.costs, with the file's name in PENSTOCK_COSTS.

A line has a test's id, its seconds on the clock and on processors: its own process's, those of
processes that it started, and those of processes that it had forked (warm.py). A fixture is paid
for by the first test that asks for it. `python -m tests.costs FILE` adds lines up by file and by
function.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests import warm


def _read() -> list[float]:
    own = os.times()
    return [time.monotonic(), own[0] + own[1], own[2] + own[3], warm.forked_s()]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure one test, with its fixtures."""
    before = _read()
    result = yield
    costs = [round(after - each, 4) for after, each in zip(_read(), before, strict=True)]
    with open(os.environ["PENSTOCK_COSTS"], "a") as file:
        file.write(json.dumps([item.nodeid, *costs]) + "\n")
    return result


def main(path: str) -> None:
    """Print the sums, the largest first."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for what, pattern in (("file", r"::.*"), ("function", r"\[.*")):
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 6)
        for test, clock, *processors in rows:
            total = sums[re.sub(pattern, "", test, flags=re.DOTALL)]
            for place, each in enumerate((sum(processors), *processors, clock, 1)):
                total[place] += each
        print(f"cpu_s    own  started  forked  clock  tests  {what}")
        for name, total in sorted(sums.items(), key=lambda pair: -pair[1][0])[:150]:
            print("{:6.2f} {:6.2f} {:6.2f} {:6.2f} {:6.2f} {:5.0f}  {}".format(*total, name))
        print(f"{sum(total[0] for total in sums.values()):6.2f}  all")


if __name__ == "__main__":
    main(sys.argv[1])
