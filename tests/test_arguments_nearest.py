"""What was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.arguments import check_choice, find_nearest, suggest, suggest_path
from penstock.errors import UsageError


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
