"""The tree of exceptions is what the docstring of penstock.errors draws."""

from __future__ import annotations

import re

import pytest

from penstock import errors


def _drawn() -> list[tuple[str, tuple[str, ...]]]:
    """Each exception of the drawing with its bases: the one above it, and the one in brackets."""
    found: list[tuple[str, tuple[str, ...]]] = []
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+)(?:\((\w+)\))?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        above[depth] = match[2]
        parent = above[depth - 1] if depth else "Exception"
        found.append((match[2], (parent, match[3]) if match[3] else (parent,)))
    return found


@pytest.mark.parametrize(("name", "bases"), _drawn())
def test_bases_are_as_drawn(name: str, bases: tuple[str, ...]) -> None:
    """Each exception has the bases that the drawing gives it."""
    assert tuple(base.__name__ for base in getattr(errors, name).__bases__) == bases


def test_the_drawing_is_complete() -> None:
    """The drawing, __all__ and the module hold the same exceptions, and each says what it is."""
    defined = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    assert sorted(name for name, _ in _drawn()) == errors.__all__ == sorted(defined)
    assert all(value.__doc__ for value in defined.values())


def test_system_errors_keep_their_number() -> None:
    """Errors with OSError as a base carry errno and file name, and are caught as OSError."""
    for kind in (errors.StorageError, errors.ChangedError, errors.MissingError):
        with pytest.raises(OSError, match="read failed") as caught:
            raise kind(5, "read failed", "a.bin")
        assert (caught.value.errno, caught.value.filename) == (5, "a.bin")
        assert isinstance(caught.value, errors.PenstockError)
