"""Build the wheels: `python -m wheels.build`, in the environment of `make wheels`.

Each wheel is compiled by clang of the `ziglang` package, which brings the headers and libraries of
glibc 2.28 and libc++ for both processors: no container, no sysroot, and one machine builds all.
Debug symbols are taken out into `dist/symbols`; auditwheel says what the wheel needs of a system,
and abi3audit whether a module for the stable ABI keeps to it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

from . import ARCHITECTURES, DIST, GLIBC, ROOT, SIZE_BYTES_MAX, SYMBOLS, WORK, announce
from .interpreters import Interpreter, describe_interpreter, find_interpreters

C_CALLS = ("memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen")
"""Functions of the C library that compilers call by themselves, and the core where speed counts."""

C_VERSIONS = {"x86_64": {"": "2.2.5", "memcpy": "2.14"}, "aarch64": {"": "2.17"}}
"""Versions of glibc's functions on each processor, by name; of the others by ""."""

TOOLS = Path(sys.executable).parent
"""Programs of the environment that this runs in: CMake, Ninja, auditwheel."""


def main() -> None:
    """Build what is asked for: by default all wheels that the interpreters of this machine can."""
    parser = argparse.ArgumentParser(prog="python -m wheels.build", description=__doc__)
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES)
    parser.add_argument("--python", action="append", metavar="PATH", help="an interpreter; repeat")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    asked = parser.parse_args()
    if asked.python:
        interpreters = [each for path in asked.python if (each := describe_interpreter(path))]
    else:
        interpreters = find_interpreters()
    print("interpreters: " + ", ".join(each.name for each in interpreters), flush=True)
    if not any(each.threaded for each in interpreters):
        print("free-threaded: none here, so no such wheel is built", flush=True)
    for architecture in asked.architecture or ARCHITECTURES:
        with announce(f"compiling the core for {architecture}, minutes"):
            core = build_core(architecture, asked.jobs)
        for interpreter in choose_builders(interpreters):
            started = time.monotonic()
            with announce(f"the wheel of Python {interpreter.name} for {architecture}, a minute"):
                wheel = build_wheel(interpreter, architecture, core, asked.jobs)
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}: {size:.2f} MB, {time.monotonic() - started:.0f} s", flush=True)


def choose_builders(interpreters: list[Interpreter]) -> list[Interpreter]:
    """The interpreters that a wheel is built with: of those of the stable ABI the oldest."""
    stable = [each for each in interpreters if each.is_stable][:1]
    return [each for each in interpreters if not each.is_stable] + stable


def build_wheel(interpreter: Interpreter, architecture: str, core: Path, jobs: int) -> Path:
    """Build, split, repair and check one wheel; return where it lies in `dist`."""
    name = f"{interpreter.tag}{'t' * interpreter.threaded}-{architecture}"
    folder = WORK / name
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    compiled = _compile(interpreter, architecture, core, folder, jobs)
    stripped = take_symbols(compiled, folder / "split")
    repaired = folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    # auditwheel takes names of platforms of its own processor alone; what it finds is checked.
    _run(TOOLS / "auditwheel", "repair", "--plat", "auto", "-w", repaired, stripped)
    (wheel,) = repaired.glob("*.whl")
    check_wheel(wheel)
    DIST.mkdir(exist_ok=True)
    final = DIST / wheel.name
    os.replace(wheel, final)
    SYMBOLS.mkdir(exist_ok=True)
    with tarfile.open(SYMBOLS / f"{wheel.stem}.debug.tar.xz", "w:xz") as archive:
        for symbols in sorted((folder / "split").glob("*.debug")):
            archive.add(symbols, symbols.name)
    return final


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that is too large, needs a newer system than is promised, or whose name
    promises another ABI than its modules have.

    A wheel whose name says abi3 and whose modules are for one version installs in all later
    versions and fails there at import; auditwheel does not see it.
    """
    size = wheel.stat().st_size
    if size > SIZE_BYTES_MAX:
        raise SystemExit(f"{wheel.name} has {size:,} bytes: at most {SIZE_BYTES_MAX:,} are allowed")
    systems = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if not systems or any((int(major), int(minor)) > GLIBC for major, minor in systems):
        raise SystemExit(f"{wheel.name} is not for glibc {GLIBC[0]}.{GLIBC[1]} and later")
    stable = "-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        modules = [each for each in archive.namelist() if each.endswith(".so")]
        slow = [
            each for each in modules if "_core." in each and not calls_glibc(archive.read(each))
        ]
    if slow:
        raise SystemExit(
            f"{slow[0]} has a memcpy of its own: it should be glibc's, which is faster"
        )
    if len(modules) != 3:
        raise SystemExit(
            f"{wheel.name} has the modules {modules}: _core, _replay and _kernels are wanted"
        )
    if any(each.endswith(".abi3.so") != stable for each in modules):
        raise SystemExit(f"the name of {wheel.name} does not fit its modules {modules}")
    if stable:
        _run(TOOLS / "abi3audit", "--strict", "--summary", wheel)


def calls_glibc(module: bytes) -> bool:
    """Tell whether a stripped module takes memcpy from the C library: it names it."""
    return b"\0memcpy\0" in module


# -- compiling -------------------------------------------------------------------------------------


def build_core(architecture: str, jobs: int) -> Path:
    """Compile the libraries of the core, which know no Python, for one processor; their folder."""
    folder = WORK / f"core-{architecture}"
    settings = {
        "CMAKE_TOOLCHAIN_FILE": write_toolchain(architecture),
        "CMAKE_BUILD_TYPE": "Release",
        "PENSTOCK_SYMBOLS": "ON",
        "PENSTOCK_PYTHON": "OFF",
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    _run(TOOLS / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *defined)
    _run(TOOLS / "cmake", "--build", folder, "--parallel", str(jobs))
    return folder


def _compile(
    interpreter: Interpreter, architecture: str, core: Path, folder: Path, jobs: int
) -> Path:
    python = _make_builder(interpreter)
    settings = {
        "build-dir": folder / "cmake",
        "install.strip": "false",
        "cmake.define.CMAKE_TOOLCHAIN_FILE": write_toolchain(architecture),
        "cmake.define.PENSTOCK_SYMBOLS": "ON",
        "cmake.define.PENSTOCK_BUILT": core,
    }
    if interpreter.is_stable:
        settings["wheel.py-api"] = interpreter.tag
    suffix = (
        f".cpython-{interpreter.tag[2:]}{'t' * interpreter.threaded}-{architecture}-linux-gnu.so"
    )
    environment = os.environ | {
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "SOURCE_DATE_EPOCH": "315619200",  # the same sources give the same wheel
        # Python builds for another processor than its own.
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
    }
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    command = [python, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "-w", str(folder / "raw"), *options, str(ROOT)]
    log = folder / "log"
    with log.open("w") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output)
    if done.returncode != 0:
        print(log.read_text()[-8000:], file=sys.stderr)
        raise SystemExit(f"{folder.name} was not built: {log} has all that was said")
    (wheel,) = (folder / "raw").glob("*.whl")
    return wheel


def _make_builder(interpreter: Interpreter) -> str:
    """Make an environment of an interpreter with what the build needs of Python; its program."""
    folder = WORK / f"python-{interpreter.name}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        _run(interpreter.path, "-m", "venv", "--clear", folder)
        needed = ("scikit-build-core>=0.10", "nanobind>=3.1")
        _run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *needed)
        (folder / "ready").touch()
    return str(python)


def write_toolchain(architecture: str) -> Path:
    """Write CMake's toolchain file, and the compiler that it names, for one processor.

    `C_CALLS` are called by the names that glibc gives their versions. By their plain names the
    linker takes those of zig's runtime library, which are slow, as soon as anything else of that
    library is needed, such as a division of 128 bits.
    """
    folder = WORK / f"toolchain-{architecture}"
    folder.mkdir(parents=True, exist_ok=True)
    target = f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    for name, command in (
        ("c++", f"c++ -target {target}"),
        ("ar", "ar"),
        ("ranlib", "ranlib"),
    ):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command} "$@"\n')
        program.chmod(0o755)
    calls = folder / "calls.hpp"
    versions = C_VERSIONS[architecture]
    calls.write_text(
        # Headers of nanobind use what libc++ does not include by the way.
        "#include <cstdio>\n"
        + "".join(
            f'__asm__(".symver {name}, {name}@GLIBC_{versions.get(name, versions[""])}");\n'
            for name in C_CALLS
        )
    )
    file = folder / "toolchain.cmake"
    file.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        f"set(CMAKE_SYSTEM_PROCESSOR {architecture})\n"
        f'set(CMAKE_CXX_COMPILER "{folder}/c++")\n'
        f'set(CMAKE_AR "{folder}/ar" CACHE FILEPATH "")\n'
        f'set(CMAKE_RANLIB "{folder}/ranlib" CACHE FILEPATH "")\n'
        # zig keeps frame pointers, which a compiler's -O3 does not.
        f'set(CMAKE_CXX_FLAGS_INIT "-include {calls} -fomit-frame-pointer")\n'
    )
    return file


# -- symbols ---------------------------------------------------------------------------------------


def take_symbols(wheel: Path, folder: Path) -> Path:
    """Move the symbols of a wheel's modules into `*.debug` in a folder; the wheel without them.

    Each module names its file of symbols (`.gnu_debuglink`), where debuggers look for it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run(TOOLS / "wheel", "unpack", "-d", folder, wheel)
    (unpacked,) = (each for each in folder.iterdir() if each.is_dir())
    objcopy = find_objcopy(wheel.stem.rpartition("linux_")[2])
    for module in sorted(unpacked.rglob("*.so")):
        stripped = module.with_suffix(".stripped")
        symbols = folder / f"{module.name}.debug"
        _run(objcopy, "--only-keep-debug", module, symbols)
        _run(objcopy, "--strip-all", f"--add-gnu-debuglink={symbols}", module, stripped)
        stripped.chmod(0o755)
        os.replace(stripped, module)
    _run(TOOLS / "wheel", "pack", "-d", folder, unpacked)
    (packed,) = folder.glob("*.whl")
    return packed


def find_objcopy(architecture: str) -> str:
    """The program that takes symbols out of modules for a processor."""
    for name in ("llvm-objcopy", f"{architecture}-linux-gnu-objcopy"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no llvm-objcopy to take symbols out with (Debian: apt-get install llvm)")


def _run(*command: str | Path) -> None:
    environment = os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"}
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}".rstrip())


if __name__ == "__main__":
    main()
