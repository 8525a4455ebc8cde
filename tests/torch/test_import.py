"""The import of `penstock.torch` where torch is missing."""

from __future__ import annotations

import sys

from tests import warm

PROGRAM = """
import sys
sys.modules["torch"] = None  # as if it were not installed
try:
    import penstock.torch
except ModuleNotFoundError as error:
    print(error.name, error)
import penstock
print(penstock.Loader.__name__)
"""


def test_without_torch() -> None:
    """The error says what to install, and what works without it."""
    command = [sys.executable, "-c", PROGRAM]
    done = warm.run(command, lean=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("torch penstock.torch needs PyTorch: pip install torch ")
    assert "'penstock[torch]'" in done.stdout
    assert done.stdout.endswith("\nLoader\n")
