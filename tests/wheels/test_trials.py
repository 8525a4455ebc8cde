"""Wheels: what they must not promise, and what people do with one in their first ten minutes."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from wheels.build import check_wheel
from wheels.interpreters import Interpreter, describe_interpreter

from tests import warm
from wheels import check, trials

TAG = "manylinux_2_28_x86_64"


def make_wheel(
    folder: Path,
    tag: str,
    suffix: str,
    size: int = 10,
    system: str = TAG,
    content: bytes = b"\0memcpy\0",
) -> Path:
    """A wheel by its name, with three modules whose names end so."""
    path = folder / f"penstock-1.0-{tag}-{system}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("penstock/_core", "penstock_bench/_replay", "penstock_sim/_kernels"):
            archive.writestr(f"{name}{suffix}", content.ljust(size, b"x"))
    return path


def test_a_wheel_whose_name_promises_another_abi_is_refused(tmp_path: Path) -> None:
    """A module for 3.12 alone in a wheel for all later ones, and the other way round."""
    wrong = make_wheel(tmp_path, "cp312-abi3", ".cpython-312-x86_64-linux-gnu.so")
    with pytest.raises(SystemExit, match="does not fit its modules"):
        check_wheel(wrong)
    wrong = make_wheel(tmp_path, "cp311-cp311", ".abi3.so")
    with pytest.raises(SystemExit, match="does not fit its modules"):
        check_wheel(wrong)
    check_wheel(make_wheel(tmp_path, "cp311-cp311", ".cpython-311-x86_64-linux-gnu.so"))


def test_a_wheel_that_copies_by_itself_is_refused(tmp_path: Path) -> None:
    """The runtime library of the wheels' compiler has a memcpy, at a third of glibc's speed."""
    slow = make_wheel(tmp_path, "cp311-cp311", ".cpython-311-x86_64-linux-gnu.so", content=b"")
    with pytest.raises(SystemExit, match="has a memcpy of its own"):
        check_wheel(slow)


def test_a_large_wheel_is_refused(tmp_path: Path) -> None:
    """Three megabytes, whatever takes them."""
    large = make_wheel(tmp_path, "cp311-cp311", ".cpython-311-x86_64-linux-gnu.so", 1_600_000)
    with pytest.raises(SystemExit, match="at most 3,000,000 are allowed"):
        check_wheel(large)


@pytest.mark.parametrize("system", ["manylinux_2_36_aarch64", "linux_x86_64"])
def test_a_wheel_that_needs_a_newer_system_is_refused(tmp_path: Path, system: str) -> None:
    """Whatever auditwheel finds that it needs, it is for glibc 2.28 at most."""
    newer = make_wheel(tmp_path, "cp311-cp311", ".cpython-311-x86_64-linux-gnu.so", system=system)
    with pytest.raises(SystemExit, match="is not for glibc 2.28 and later"):
        check_wheel(newer)


def test_a_wheel_is_tried_on_each_interpreter_that_it_is_for() -> None:
    """The stable ABI serves all from 3.12 on but those without the global lock."""
    here = [
        Interpreter((3, 11), False, "a"),
        Interpreter((3, 12), False, "b"),
        Interpreter((3, 13), False, "c"),
        Interpreter((3, 13), True, "d"),
    ]

    def names(tag: str) -> list[str]:
        return [each.name for each in check.serve(Path(f"penstock-1.0-{tag}-{TAG}.whl"), here)]

    assert names("cp312-abi3") == ["3.12", "3.13"]
    assert names("cp311-cp311") == ["3.11"]
    assert names("cp313-cp313t") == ["3.13t"]


def test_the_first_batch_is_judged_by_the_clock_unless_others_take_the_machine() -> None:
    """A quiet machine shows what people wait for; on a busy one CPU seconds have to be few."""
    assert check.FirstBatch(9.0, 12.0, 0.2).reached  # two cores at a time
    assert not check.FirstBatch(11.0, 3.0, 0.5).reached
    assert check.FirstBatch(50.0, 6.0, 12.0).reached
    assert not check.FirstBatch(50.0, 11.0, 12.0).reached


def test_the_recorded_orders_are_read_from_the_tests_of_orders() -> None:
    """All that a wheel is compared with is there."""
    goldens = check.read_goldens()
    assert goldens["permutation"][100] == [54, 99, 31, 36, 82]
    assert (goldens["checksum"], len(goldens["order"])) == (0xF9E67F36, 4)


@pytest.mark.parametrize("kind", ["", "old-kernel", "no-ring"])
@pytest.mark.long
def test_the_smoke_suite_passes_here_and_fails_on_another_order(tmp_path: Path, kind: str) -> None:
    """Also where the kernel answers as older ones do, with worker processes."""
    recorded = check.read_goldens()
    (tmp_path / "right.json").write_text(json.dumps(recorded))
    recorded["order"][0] += 1
    (tmp_path / "wrong.json").write_text(json.dumps(recorded))
    script = str(Path(check.__file__).parent / "smoke.py")
    for name, code in (("right", 0), ("wrong", 1)):
        command = [sys.executable, script, str(tmp_path / f"{name}.json"), *filter(None, [kind])]
        done = warm.subprocess.run(
            command, capture_output=True, text=True, env={"PATH": "/nowhere"}
        )
        assert done.returncode == code, done.stderr
    assert "order" in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, with the modules that are built."""
    from wheels.local import make_local_wheel

    return make_local_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.extra  # check-wheels
@pytest.mark.long
def test_a_wheel_is_enough_where_nothing_else_is(wheel: Path, tmp_path: Path) -> None:
    """An empty environment with the oldest numpy, no compiler, and kernels that refuse io_uring."""
    (tmp_path / "goldens.json").write_text(json.dumps(check.read_goldens()))
    interpreter = describe_interpreter(sys.executable)
    assert interpreter is not None
    outcome = check.Outcome()
    check.try_installed(wheel, interpreter, tmp_path / "goldens.json", outcome)
    numpy = check.OLDEST_NUMPY[interpreter.name]
    assert outcome.ran == [f"{wheel.stem.split('-', 2)[2]} on {interpreter.name}, numpy {numpy}"]


@pytest.mark.parametrize("name", [trial.name for trial in trials.TRIALS])
@pytest.mark.extra  # check-wheels
@pytest.mark.long
def test_trial(name: str, wheel: Path) -> None:
    """From an empty environment to a result, in few commands and without a warning."""
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    (trial,) = (each for each in trials.TRIALS if each.name == name)
    result = trials.run_trial(trial, wheel, sys.executable)
    assert result.passed, result.fault
