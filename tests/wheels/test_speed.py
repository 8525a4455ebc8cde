"""Kernels and speed of a wheel: what is compared, and when a wheel is called slow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from wheels.local import make_local_wheel
from wheels.smoke import check_kernels

from wheels import ROOT, speed


def test_each_part_uses_what_the_processor_has() -> None:
    """The kernel of each part is the best that /proc/cpuinfo allows: none asks somebody else."""
    assert set(check_kernels()) >= {"orders", "JPEG", "resizing", "lines", "checksums"}


def test_a_kernel_that_is_not_used_is_an_error() -> None:
    """On a processor that had less, or more, what is in use would be wrong."""
    with pytest.raises(AssertionError, match="are in use, and this processor allows"):
        check_kernels("sse4_2 avx512f avx512dq avx512vl avx512bw")


def test_one_place_asks_the_processor() -> None:
    """A question of its own is what left the wheels' images at the portable kernels."""
    question = re.compile(r"__builtin_cpu_(supports|is|init)\s*\(|__get_cpuid|target_clones|ifunc")
    asking = [
        path.relative_to(ROOT / "cpp").as_posix()
        for path in sorted((ROOT / "cpp").rglob("*.[ch]pp"))
        if question.search(path.read_text())
    ]
    assert asking == ["ground/processor.hpp"]


@pytest.mark.parametrize(("ratio", "is_short"), [(1.0, False), (0.96, False), (0.9, True)])
def test_a_slower_wheel_is_short_and_a_busy_machine_is_not(ratio: float, is_short: bool) -> None:
    """One pair in five is disturbed by half; what counts is the interval of the median."""
    random = np.random.default_rng(1)
    ratios = ratio * random.normal(1, 0.02, speed.PAIRS)
    ratios[::5] *= random.choice([0.5, 2.0], len(ratios[::5]))
    assert speed.is_short(ratios.tolist()) == is_short


@pytest.mark.extra  # check-wheels
@pytest.mark.long
def test_a_wheel_of_the_same_modules_is_as_fast(tmp_path: Path) -> None:
    """Each row runs in both builds, and the same machine code is not called slower."""
    wheel = make_local_wheel(tmp_path)
    assert speed.compare(wheel, rows=sorted(speed.ROWS))
