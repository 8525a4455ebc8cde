"""Try the wheels in `dist`: `python -m wheels.check`, as `make check-wheels` runs it.

Each wheel is installed in an empty environment of each interpreter that it is for, with the oldest
numpy that there is for that, and `smoke.py` runs there without a compiler: as it is, as on an old
kernel, without io_uring, and on a processor without AVX2. What cannot be run here is named.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import ARCHITECTURES, DIST, ROOT, SIZE_BYTES_MAX, WORK, aarch64, announce, trials
from .build import check_wheel
from .interpreters import Interpreter, describe_interpreter, find_interpreters

OLDEST_NUMPY = {"3.11": "1.26.0", "3.12": "1.26.0", "3.13": "2.1.0", "3.14": "2.3.2"}
"""First numpy with wheels for each Python; 1.26 is the oldest that penstock takes."""

FIRST_BATCH_S_MAX = 10.0
OLD_PROCESSOR = "Nehalem"
OLD_INSTRUCTIONS = "sse4_2 popcnt"
"""A processor of 2008, and what it has that the core uses: neither AVX nor BMI."""

HERE = Path(__file__).parent


class FirstBatch(NamedTuple):
    """Seconds from the start of the installation to the first batch, by the clock and of CPU; the
    load of the machine then, in processes a core."""

    clock_s: float
    cpu_s: float
    load: float

    @property
    def reached(self) -> bool:
        """Whether it was soon enough; on a busy machine the clock shows what others take."""
        return min(self.clock_s, self.cpu_s if self.load > 1 else self.clock_s) <= FIRST_BATCH_S_MAX


@dataclass
class Outcome:
    """What the checks found, as rows of the table are made of it."""

    sizes: dict[str, int] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    first_batch: list[FirstBatch] = field(default_factory=list)
    architectures: set[str] = field(default_factory=set)
    interpreters: set[str] = field(default_factory=set)
    without_trials: bool = False
    trials: list[trials.Result] = field(default_factory=list)
    is_fast: bool | None = None


def main() -> None:
    """Check all wheels, and print what was wanted and what there is; exit code 1 if they differ."""
    parser = argparse.ArgumentParser(prog="python -m wheels.check", description=__doc__)
    parser.add_argument("wheels", nargs="*", type=Path, help="by default all in dist/")
    parser.add_argument("--no-trials", action="store_true", help="leave the ten-minute trials out")
    asked = parser.parse_args()
    wheels = [each.resolve() for each in asked.wheels] or sorted(DIST.glob("*.whl"))
    if not wheels:
        raise SystemExit("no wheel in dist/: make wheels builds them")
    outcome = Outcome()
    goldens = WORK / "goldens.json"
    goldens.parent.mkdir(parents=True, exist_ok=True)
    goldens.write_text(json.dumps(read_goldens()))
    interpreters = find_interpreters()
    outcome.interpreters = {each.name for each in interpreters}
    outcome.without_trials = asked.no_trials
    if asked.no_trials:
        outcome.left_out.append("ten-minute trials: make test-long has them")
    if not any(each.threaded for each in interpreters):
        outcome.left_out.append("free-threaded: no such interpreter here")
    for wheel in wheels:
        check_wheel(wheel)
        outcome.sizes[wheel.name] = wheel.stat().st_size
        if wheel.stem.endswith("aarch64"):
            with announce(f"{wheel.name} under qemu, minutes"):
                _try_on_aarch64(wheel, goldens, outcome)
            continue
        for interpreter in serve(wheel, interpreters):
            with announce(f"{wheel.name} on Python {interpreter.name}, a minute"):
                try_installed(wheel, interpreter, goldens, outcome)
    check_refusals(wheels)
    print("refused by pip: musl, 32 bits, macOS, Windows, Python 3.10", flush=True)
    native = [each for each in wheels if not each.stem.endswith("aarch64")]
    if not asked.no_trials and native:
        for interpreter in interpreters[:1]:
            fitting = [each for each in native if interpreter in serve(each, interpreters)]
            if fitting:
                with announce("the ten-minute trials"):
                    outcome.trials = trials.run_all(fitting[0], interpreter.path)
    made = describe_interpreter(str(ROOT / ".venv" / "bin" / "python"))
    fitting = [each for each in native if made and made in serve(each, [made])]
    if fitting:
        with announce("its speed beside a build of the source, minutes"):
            compare_speed(fitting[0], outcome)
    else:
        outcome.left_out.append("speed beside a build of the source: needs make setup")
    sys.exit(0 if print_table(outcome) else 1)


def read_goldens() -> dict[str, Any]:
    """The recorded values of orders, from the tests of the order, which are where they stand."""
    tree = ast.parse((ROOT / "tests" / "order" / "test_order.py").read_text())
    values = {
        target.id: eval(compile(ast.Expression(node.value), "goldens", "eval"), {})
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.startswith("GOLDEN")
    }
    return {
        "permutation": values["GOLDEN"],
        "checksum": values["GOLDEN_CHECKSUM"],
        "order": values["GOLDEN_ORDER"],
    }


def serve(wheel: Path, interpreters: list[Interpreter]) -> Iterator[Interpreter]:
    """The interpreters here that a wheel is for."""
    python, abi = wheel.stem.split("-")[2:4]
    for interpreter in interpreters:
        own = f"{interpreter.tag}{'t' * interpreter.threaded}"
        if (interpreter.is_stable and abi == "abi3") or (python, abi) == (interpreter.tag, own):
            yield interpreter


# -- one wheel -------------------------------------------------------------------------------------


def try_installed(wheel: Path, interpreter: Interpreter, goldens: Path, outcome: Outcome) -> None:
    """Install a wheel in an empty environment of an interpreter, with the oldest numpy, and run
    the suite there in each way that this machine has. SystemExit if something is not so."""
    numpy = OLDEST_NUMPY.get(interpreter.name.rstrip("t"), "")
    store = WORK / "downloads"
    wanted = f"numpy=={numpy}" if numpy else "numpy"
    pip = [interpreter.path, "-m", "pip", "-q", "--disable-pip-version-check"]
    run(*pip, "download", "--no-deps", "--only-binary", ":all:", "-d", store, wanted)
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as scratch:
        folder = Path(scratch) / "env"
        run(interpreter.path, "-m", "venv", folder)
        python = folder / "bin" / "python"
        started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        offline = ["--no-index", "--find-links", store, wheel, wanted]
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *offline)
        install_s, until = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        install_cpu_s = until.ru_utime + until.ru_stime - used.ru_utime - used.ru_stime
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
        found = _run_smoke([python], goldens, {"PATH": str(folder / "bin")})
        clock_s, cpu_s = (
            install_s + found["first_batch_s"],
            install_cpu_s + found["first_batch_cpu_s"],
        )
        outcome.first_batch.append(FirstBatch(clock_s, cpu_s, load))
        name = f"{wheel.stem.split('-', 2)[2]} on {interpreter.name}, numpy {found['numpy']}"
        tried = ["/".join(found["backends"]), describe_kernels(found)]
        for kind in ("old-kernel", "no-ring"):
            _run_smoke([python], goldens, {"PATH": str(folder / "bin")}, kind)
            tried.append(kind)
        emulator = shutil.which("qemu-x86_64-static")
        if emulator:
            command = [emulator, "-cpu", OLD_PROCESSOR, python]
            variables = {"PATH": str(folder / "bin"), "PENSTOCK_EMULATED": OLD_INSTRUCTIONS}
            old = _run_smoke(command, goldens, variables)
            tried.append(f"{OLD_PROCESSOR} ({describe_kernels(old)})")
        else:
            outcome.left_out.append(f"{name} on an old processor: needs qemu-user-static")
        commands = folder / "bin" / "penstock"
        said = run(commands, "--version", env={"PATH": str(folder / "bin")}).split()
        if said != ["penstock", version_of(wheel)]:
            raise SystemExit(f"{wheel.name}: penstock --version says {said}")
        tried.append("--version")
        outcome.architectures.add("x86_64")
        outcome.ran.append(name)
        print(f"{name}: {', '.join(tried)}", flush=True)


def _try_on_aarch64(wheel: Path, goldens: Path, outcome: Outcome) -> None:
    if "-abi3-" in wheel.name:
        outcome.left_out.append(f"{wheel.name}: no Python of 3.12 or later for aarch64 here")
        return
    if refusal := aarch64.find_refusal():
        outcome.left_out.append(f"{wheel.name}: {refusal}")
        return
    command = [*aarch64.prepare_python()]
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as scratch:
        site = Path(scratch) / "site"
        store = WORK / "downloads"
        wanted = ["--platform", "manylinux2014_aarch64", "--python-version", "3.11"]
        options = ["-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        numpy = f"numpy=={OLDEST_NUMPY['3.11']}"
        run(sys.executable, "-m", "pip", "download", *options, *wanted, "-d", store, numpy)
        for package in (wheel, *store.glob(f"numpy-{OLDEST_NUMPY['3.11']}-*aarch64.whl")):
            with zipfile.ZipFile(package) as archive:
                archive.extractall(site)
        variables = aarch64.environment(site) | {"PENSTOCK_EMULATED": "asimd"}
        found = _run_smoke(command, goldens, variables)
    outcome.left_out.append(
        "worker processes and shared caches on aarch64: qemu starts no other programs, and "
        "gives processes another time of their start than it gives their parents"
    )
    outcome.architectures.add("aarch64")
    name = f"{wheel.stem.split('-', 2)[2]} on 3.11 under qemu, numpy {found['numpy']}"
    outcome.ran.append(name)
    print(f"{name}: {'/'.join(found['backends'])}, {describe_kernels(found)}", flush=True)


def _run_smoke(
    command: list[Any], goldens: Path, variables: dict[str, str], kind: str = ""
) -> dict[str, Any]:
    scratch = {"TMPDIR": os.environ.get("TMPDIR", "/tmp"), "OMP_NUM_THREADS": "1"}
    options = [kind] if kind else []
    said = run(*command, HERE / "smoke.py", goldens, *options, env=variables | scratch)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def describe_kernels(found: dict[str, Any]) -> str:
    """The kernels that were in use, and what for."""
    parts: dict[str, list[str]] = {}
    for what, kernel in found["kernels"].items():
        parts.setdefault(kernel, []).append(what)
    return "; ".join(f"{kernel}: {', '.join(names)}" for kernel, names in parts.items())


def compare_speed(wheel: Path, outcome: Outcome) -> None:
    """Hold a wheel against the build of `make setup`, by `speed.py`."""
    print(f"speed of {wheel.name} beside the build of make setup", flush=True)
    command = [ROOT / ".venv" / "bin" / "python", "-m", "wheels.speed", wheel]
    outcome.is_fast = subprocess.run(command, cwd=ROOT).returncode == 0


def version_of(wheel: Path) -> str:
    """The version in the name of a wheel."""
    return wheel.stem.split("-")[1]


# -- systems that are not supported ----------------------------------------------------------------

REFUSED = {
    "musl": ("--platform", "musllinux_1_2_x86_64", "--python-version", "3.12"),
    "32 bits": ("--platform", "manylinux_2_28_i686", "--python-version", "3.12"),
    "macOS": ("--platform", "macosx_14_0_arm64", "--python-version", "3.12"),
    "Windows": ("--platform", "win_amd64", "--python-version", "3.12"),
    "Python 3.10": ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.10"),
}
"""Systems for which pip must find no wheel of these: they would fail at import."""


def check_refusals(wheels: list[Path]) -> None:
    """Have pip look for a wheel for each system that is not supported; it must find none."""
    with tempfile.TemporaryDirectory() as scratch:
        for wheel in wheels:
            shutil.copy(wheel, scratch)
        for system, options in REFUSED.items():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-index", "--no-deps"]
            command += ["--only-binary", ":all:", "--find-links", scratch, "-d", scratch, *options]
            done = subprocess.run([*command, "penstock"], capture_output=True, text=True)
            if done.returncode == 0:
                raise SystemExit(f"pip takes a wheel of {[w.name for w in wheels]} on {system}")


# -- the table -------------------------------------------------------------------------------------


def print_table(outcome: Outcome) -> bool:
    """Print what was wanted beside what there is; True if all of it was reached."""
    largest = max(outcome.sizes.values()) / 1e6
    slowest = max(outcome.first_batch, default=FirstBatch(math.inf, math.inf, 0.0))
    passed = [each for each in outcome.trials if each.passed]
    tried = {each.split(" on ")[1].split(",")[0] for each in outcome.ran}
    rows = [
        (
            "install and first batch, no compiler, after download",
            f"<= {FIRST_BATCH_S_MAX:.0f} s",
            f"{slowest.clock_s:.1f} s, {slowest.cpu_s:.1f} s of CPU, at {slowest.load:.1f} "
            f"processes a core; the slowest of {len(outcome.first_batch)}",
            all(each.reached for each in (*outcome.first_batch, slowest)),
        ),
        (
            "size of a wheel",
            f"<= {SIZE_BYTES_MAX / 1e6:.0f} MB",
            f"{largest:.2f} MB, the largest of {len(outcome.sizes)}",
            largest <= SIZE_BYTES_MAX / 1e6,
        ),
        (
            "interpreters",
            "all here",
            ", ".join(sorted(tried)),
            outcome.interpreters <= tried,
        ),
        (
            "architectures, orders equal to the recorded values",
            f"{len(ARCHITECTURES)}",
            ", ".join(sorted(outcome.architectures)),
            outcome.architectures == set(ARCHITECTURES),
        ),
    ]
    if outcome.is_fast is not None:
        rows.append(
            (
                "speed and kernels beside a build of the source",
                ">= 0.95, equal",
                "as listed above",
                outcome.is_fast,
            )
        )
    if not outcome.without_trials:
        rows.append(
            (
                "ten-minute trials, without a warning",
                f"all, <= {trials.COMMANDS_MAX} commands",
                f"{len(passed)} of {len(trials.TRIALS)}",
                len(passed) == len(trials.TRIALS),
            )
        )
    print()
    for what, wanted, is_there, reached in rows:
        print(f"{'ok   ' if reached else 'SHORT'} {what:<55}{wanted:<22}{is_there}")
    for each in outcome.left_out:
        print(f"left out: {each}")
    return all(row[3] for row in rows)


def run(*command: Any, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; what it printed. SystemExit with what it said if it failed."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd="/")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


if __name__ == "__main__":
    main()
