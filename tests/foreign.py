"""Run torch's own tests of DataLoader, and torchdata's of StatefulDataLoader, against ours.

    make test-foreign TORCH_TESTS=~/pytorch/test DATA_TESTS=~/data/test/stateful_dataloader

No wheel contains those tests: the folders are checkouts of theirs (torch's are also in Debian's
source package `pytorch`), and nothing of them is kept here. Each test that fails has to be named in
`DEVIATIONS`, with the reason; docs/torch.md tells users. The exit code is 1 if another one fails.
`python -m tests.foreign --theirs FOLDER` runs them against the loaders that they were written for:
what fails there too says nothing about ours. Needs what those tests import (expecttest, psutil).
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path
from typing import Any

import pytest

_iterable = "the dataset is an IterableDataset, which is refused with the name of torch's loader"
_private = "it reads attributes that torch keeps private"
_words = "the exception is of the same type, in words of our own"

DEVIATIONS = {
    # torch: test_dataloader.py; torchdata has a copy of it
    "*::test_error_in_init": _iterable,
    "*::test_fd_limit_exceeded": _iterable,
    "*::test_builtin_collection_conversion": _iterable,
    "*::test_iterable_style_dataset": _iterable,
    "*::test_chain_iterable_style_dataset": _iterable,
    "*::test_multiprocessing_iterdatapipe*": _iterable,
    "*::test_multi_epochs_reproducibility": _iterable,
    "*::test_proper_exit": _iterable,
    "*::test_iterabledataset_len": _iterable,
    "*::test_early_exit": _iterable,
    "*::test_*_order_iterable_ds": _iterable,
    "*DataPipe::*": _iterable,
    "TestSetAffinity::*": _iterable,
    "*::test_bulk_loading_nobatch": _private,
    "*::test_get_worker_info": "it fails with torch 2.13's own loader, too",
    "*::test_partial_workers": _private,
    "*::test_invalid_ctor_args_combinations": _words,
    "*::test_segfault": "it is marked as one that fails, and passes here",
    "*::test_growing_dataset": "the length is that of the dataset when the loader was made",
    "*::test_worker_init_fn": "items are seeded one by one, whatever worker_init_fn has seeded",
    "*::test_excessive_thread_creation_warning": "too many workers are told of by explain()",
    "*::test_ind_worker_queue": "the worker that has least to do makes the next batch",
    "*::test_*order_index_ds": "batches come in order, of the worker that has least to do",
    # torchdata: test_state_dict.py, test_sampler.py and others
    "TestStatefulDataLoaderIterable*::*": _iterable,
    "TestStatefulDataLoaderGenerator*::*": _iterable,
    "TestSnapshot*::test_generator*": _iterable,
    "TestSnapshot*::test_iterable": _iterable,
    "TestFastStateDictRequest*::*": _iterable,
    "TestJsonSerDe*::test_json_serde_*_process": _iterable,
    "TestDynamicState*::*": _iterable,
    "TestDatasetIteratorState*::*": _iterable,
    "TestNumWorkersMismatch*::*": "a state fits any number of workers",
    "TestInitialState*::test_*initial_state*": "the form of the state is ours",
    "TestInitialState*::test_init_error": "workers start at the first batch, not at iter()",
    "*::test_seed_replicability": "the order depends on seed=, not on torch's global generator",
}
"""Tests that fail on purpose, as class and function, and why."""


class Plugin:
    """Puts our loader in the place of theirs before tests are collected, and notes failures."""

    def __init__(self, theirs: bool) -> None:
        self._theirs = theirs
        self.failed: list[str] = []
        self.passed = 0

    def pytest_configure(self) -> None:
        if self._theirs:
            return
        import torch.utils.data

        from penstock.torch import DataLoader

        class Stateful(DataLoader):
            """Our loader, with torchdata's further argument."""

            def __init__(self, *values: Any, snapshot_every_n_steps: int = 1, **options: Any):
                super().__init__(*values, **options)

        torch.utils.data.DataLoader = DataLoader  # type: ignore[assignment,misc]
        try:
            import torchdata.stateful_dataloader as stateful
        except ImportError:
            return
        stateful.StatefulDataLoader = Stateful  # type: ignore[assignment,misc]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append("::".join(report.nodeid.split("::")[1:]))
        elif report.when == "call" and report.passed:
            self.passed += 1


def find_reason(test: str) -> str | None:
    """Return the reason why a test fails on purpose."""
    return next((why for name, why in DEVIATIONS.items() if fnmatch.fnmatch(test, name)), None)


def main() -> int:
    """Run the tests of a folder, and print what deviates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--theirs", action="store_true", help="leave their own loaders in place")
    parser.add_argument("options", nargs="*", help="of pytest, after --")
    given = parser.parse_args()
    plugin = Plugin(given.theirs)
    names = ("test_dataloader.py", "test_state_dict.py", "test_sampler.py")
    files = [str(given.folder / name) for name in names if (given.folder / name).exists()]
    if not files:
        parser.error(f"{given.folder} has none of {', '.join(names)}: name a checkout's folder")
    options = ["-q", "--tb=line", "-p", "no:cacheprovider", f"--rootdir={given.folder}"]
    pytest.main([*options, "--timeout=300", *given.options, *files], plugins=[plugin])
    unknown = sorted({test for test in plugin.failed if given.theirs or find_reason(test) is None})
    for test in sorted(set(plugin.failed) - set(unknown)):
        print(f"meant: {test}: {find_reason(test)}")
    for test in unknown:
        print(f"fails: {test}" if given.theirs else f"NOT MEANT: {test}")
    print(f"{plugin.passed} passed, {len(unknown)} failed")
    return 1 if unknown or not plugin.passed else 0


if __name__ == "__main__":
    sys.exit(main())
