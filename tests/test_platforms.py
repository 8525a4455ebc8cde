"""Systems that penstock does not run on get one sentence, at import and from the build."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.lazy_exports import explain_import_error, find_platform_fault
from tests import ROOT, warm

REFUSED = {
    "penstock needs Linux and this is macOS": {"system": "darwin"},
    "penstock needs Linux and this is Windows": {"system": "win32"},
    "penstock needs Linux and this is freebsd14": {"system": "freebsd14"},
    "penstock needs Python 3.11 or later and this is 3.10": {"version": (3, 10)},
    "penstock needs CPython and this is pypy": {"implementation": "pypy"},
    "penstock needs a 64-bit Python": {"pointer_max": 2**31 - 1},
    "penstock needs a little-endian processor": {"byte_order": "big"},
    "penstock needs glibc 2.28 or later and this Python is built for musl": {
        "multiarch": "x86_64-linux-musl"
    },
}


@pytest.mark.parametrize("beginning", REFUSED)
def test_a_system_that_is_not_supported_is_named_with_a_remedy(beginning: str) -> None:
    """One sentence: what is needed, what is here, and after the colon what to do."""
    said = find_platform_fault(**REFUSED[beginning])
    assert said is not None
    assert said.startswith(beginning)
    assert ": " in said[len(beginning) - 1 :]
    assert "\n" not in said


def test_this_system_and_later_pythons_are_taken() -> None:
    """No fault here, nor for Pythons to come, nor where Python does not say what libc it has."""
    assert find_platform_fault() is None
    assert find_platform_fault(version=(3, 15), multiarch="") is None
    assert find_platform_fault(multiarch="aarch64-linux-gnu") is None


CUT_OFF = (
    "import sys; sys.modules['penstock._core'] = None\n"
    "import penstock\n"
    "try:\n"
    "    penstock.Loader\n"
    "except ImportError as error:\n"
    "    print(error)\n"
    "sys.argv = ['penstock', 'inspect', '.']\n"
    "from penstock.cli import main\n"
    "main()\n"
)


def test_a_compiled_module_that_cannot_be_loaded_is_one_sentence() -> None:
    """`import` and a command refuse; the command ends with code 1 and no traceback."""
    done = subprocess.run([sys.executable, "-c", CUT_OFF], capture_output=True, text=True)
    for said in (done.stdout, done.stderr):
        assert "penstock._core, the compiled part of penstock, cannot be loaded by Python" in said
        assert "install penstock again with this Python" in said
        assert said.count("\n") == 1
    assert done.returncode == 1


def test_an_old_c_library_is_named() -> None:
    """The loader's own words stand in it, and which systems are new enough."""
    said = explain_import_error("penstock._core", "version `GLIBC_2.28' not found")
    assert said.startswith("penstock needs glibc 2.28 or later and this system's is older")
    assert "Debian 10" in said


@pytest.mark.long
def test_an_older_python_is_told_so() -> None:
    """A real one refuses, which cannot read most of the package."""
    from wheels.interpreters import describe_interpreter, list_candidates

    old = {
        path
        for path in list_candidates(oldest=8)
        if (each := describe_interpreter(path)) and (3, 8) <= each.version < (3, 11)
    }
    if not old:
        pytest.skip("no Python 3.8, 3.9 or 3.10 here")
    for path in sorted(old):
        command = [path, "-c", "import penstock"]
        done = subprocess.run(
            command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
        )
        last = done.stderr.splitlines()[-1]
        assert last.startswith("ImportError: penstock needs Python 3.11 or later and this is 3.")


def configure(folder: Path, *settings: str) -> str:
    """Return the message of CMake for this checkout with such settings; it has to fail."""
    done = subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(folder), "-DPENSTOCK_PYTHON=OFF", *settings],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_the_build_refuses_other_systems_before_it_looks_for_a_compiler(tmp_path: Path) -> None:
    """macOS and Windows, where pip builds from source as there is no wheel."""
    for system in ("Darwin", "Windows"):
        said = configure(
            tmp_path / system, f"-DCMAKE_SYSTEM_NAME={system}", "-DCMAKE_CXX_COMPILER=none"
        )
        assert f"penstock needs Linux and this is {system}: use a Linux machine" in said


@pytest.mark.long
def test_the_build_refuses_musl(tmp_path: Path) -> None:
    """By name, from the C library's own headers (Debian: musl-dev)."""
    headers = Path("/usr/include/x86_64-linux-musl")
    if not headers.is_dir() or shutil.which("g++") is None:
        pytest.skip("no headers of musl, or no g++")
    flags = f"-DCMAKE_CXX_FLAGS=-nostdinc -isystem {headers}"
    said = configure(tmp_path, flags, "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    assert "penstock needs glibc 2.28 or later and this system has another C library" in said


def test_a_typo_in_a_path_or_a_format_names_the_nearest(tmp_path: Path) -> None:
    """What exists beside it, and the format that people call by another name."""
    (tmp_path / "train").mkdir()
    code = (
        "import sys, penstock\n"
        "for path, options in ((sys.argv[1] + '/trian', {}), (sys.argv[1], {'format': 'csv'})):\n"
        "    try:\n"
        "        penstock.open(path, **options)\n"
        "    except penstock.PenstockError as error:\n"
        "        print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = warm.run(command, capture_output=True, text=True, lean=True, check=True)
    path, name = done.stdout.splitlines()
    assert path == (
        f"{tmp_path}/trian does not exist (did you mean '{tmp_path}/train'?): check the path, and "
        f"that it is mounted"
    )
    assert name.startswith("format is 'csv': did you mean 'table'? use one of")
