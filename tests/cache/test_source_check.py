"""The check of files whose bytes are kept: a change is an error, a check that fails a warning."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from penstock import limits
from penstock.cache.engine import SourceCheck
from penstock.errors import PenstockError
from penstock.extent import Files


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than an epoch waits."""
    monkeypatch.setattr(limits, "source_check_wait_s", 60.0)


def check(files: Files) -> list[PenstockError]:
    """Check files to the end; return the errors that came."""
    errors: list[PenstockError] = []
    SourceCheck(files, errors.append).start()
    assert "penstock-source-check" not in {thread.name for thread in threading.enumerate()}
    return errors


def test_a_check_that_fails_is_a_warning_that_names_the_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody foresaw, here of a table of files whose columns differ: the log says
    what was not checked, and why."""
    (tmp_path / "a").write_bytes(b"abc")
    one, three = np.array([3]), np.array([3, 3, 3])
    assert check(Files.of(str(tmp_path), ["a"], one, one)) != []  # of another time
    assert caplog.text == ""
    assert check(Files.of(str(tmp_path), ["a", "a"], three, three)) == []
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"files below {tmp_path} could not be looked at again" in record.getMessage()
    assert "ValueError" in record.getMessage()
