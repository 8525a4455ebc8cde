"""Checks that fields declare, and suggestions of what was probably meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from penstock.arguments import (
    check_choice,
    check_fields,
    choice,
    file_path,
    find_nearest,
    flag,
    fraction,
    function,
    instance,
    rate,
    real,
    suggest,
    suggest_path,
    whole,
)
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """A field for each kind of check."""

    count: int = field(default=1, metadata=whole(1, 9))
    limit: int | None = field(default=None, metadata=whole())
    share: float = field(default=0.5, metadata=fraction())
    speed: float = field(default=1.0, metadata=rate())
    cost: float = field(default=0, metadata=real(0, 8, above=False))
    exact: bool = field(default=False, metadata=flag())
    mode: Literal["auto", "off"] = field(default="auto", metadata=choice(Literal["auto", "off"]))
    folder: str = field(default="x", metadata=file_path())
    text: str = field(default="", metadata=instance(str, "a text"))
    decode: Any = field(default=None, metadata=function("a function of a sample"))
    unchecked: Any = None

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("count", 0, "use a whole number from 1 to 9"),
        ("count", None, "use a whole number from 1 to 9"),
        ("limit", 2.0, "use a whole number from 1 on, or None"),
        ("share", 1.5, "use a number from 0 to 1"),
        ("share", True, "use a number from 0 to 1"),
        ("speed", 0, "use a number above 0"),
        ("speed", float("nan"), "use a number above 0"),
        ("speed", 10**400, "use a number above 0"),
        ("cost", float("inf"), "use a number from 0 to 8"),
        ("exact", 1, "use True or False"),
        ("mode", "of", "use one of auto, off"),
        ("mode", ["auto"], "use one of auto, off"),
        ("folder", 3, "give a path"),
        ("text", b"x", "give a text"),
        ("decode", 3, "give a function of a sample, or None"),
    ],
)
def test_a_field_is_refused_with_its_name_and_what_to_use(
    name: str, value: Any, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**{name: value})
    assert str(caught.value).startswith(f"Settings.{name} is {repr(value)[:100]}")
    assert str(caught.value).endswith(f": {remedy}")


def test_fields_become_plain_values() -> None:
    """Numbers of numpy and paths are stored as Python's; infinity is a rate."""
    settings = Settings(
        count=np.int8(3),  # type: ignore[arg-type]
        share=np.float32(0.5),  # type: ignore[arg-type]
        speed=float("inf"),
        exact=np.True_,  # type: ignore[arg-type]
        folder=Path("a"),  # type: ignore[arg-type]
    )
    assert (type(settings.count), type(settings.share), settings.exact) == (int, float, True)
    assert settings.folder == "a"
    assert Settings(speed=3).speed == 3


def test_case_and_underscores_do_not_matter_and_strangers_are_not_named() -> None:
    """Nothing is better than a name that nobody meant."""
    assert find_nearest("BatchSise", ["batch_size", "seed"]) == "batch_size"
    assert find_nearest("xyz", ["batch_size", "seed"]) is None
    assert suggest("xyz", ["batch_size"]) == ""
    assert suggest("sed", ["batch_size", "seed"]) == " (did you mean 'seed'?)"


def test_a_choice_that_is_none_is_refused_with_all_that_there_are() -> None:
    """The value, the nearest, all choices, and what else may be given."""
    check_choice("mode", "auto", ("auto", "off"))
    with pytest.raises(UsageError) as refused:
        check_choice("mode", "of", ("auto", "off"), ", or a number")
    said = "mode is 'of' (did you mean 'off'?): use one of auto, off, or a number"
    assert str(refused.value) == said
    with pytest.raises(UsageError, match="mode is 3: use one of auto"):
        check_choice("mode", 3, ("auto", "off"))


def test_a_path_is_told_the_nearest_in_the_deepest_folder_that_exists(tmp_path: Path) -> None:
    """A folder that is misspelled, not the file in it, is named."""
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "train.tar").touch()
    near = f" (did you mean {str(tmp_path / 'imagenet' / 'train.tar')!r}?)"
    assert suggest_path(str(tmp_path / "imagenet" / "tran.tar")) == near
    near = f" (did you mean {str(tmp_path / 'imagenet')!r}?)"
    assert suggest_path(str(tmp_path / "imagnet" / "x" / "y")) == near
    assert suggest_path(str(tmp_path / "other")) == ""
