"""Tasks of a plan as array jobs: which are an element's, and the script for sbatch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ..errors import UsageError
from .work_plan import WorkPlan

_ARRAY_MAX = 1000
_COUNT = "SLURM_ARRAY_TASK_COUNT"


def parse_tasks(text: str, count: int) -> list[int]:
    """Parse tasks such as 17, 100:200 (without 200) or 1,5,10:20 of so many."""
    tasks: list[int] = []
    for part in text.split(","):
        form = re.fullmatch(r"(\d+)(?::(\d+))?", part.strip())
        if form is None:
            raise UsageError(f"--tasks is {text!r}: give 17, 100:200 or 1,5,10:20")
        first = int(form[1])
        stop = int(form[2]) if form[2] else first + 1
        if not first < stop <= count:
            raise UsageError(f"--tasks has {part.strip()}, and the plan has {count:,} tasks from 0")
        tasks += range(first, stop)
    return tasks


def find_share(count: int, environ: Mapping[str, str]) -> tuple[str, list[int]] | None:
    """Find this process's share of the tasks, if it is an element of an array, by the environment:
    what says so, and the tasks.

    SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT from SLURM_ARRAY_TASK_MIN, or Kubernetes'
    JOB_COMPLETION_INDEX of PENSTOCK_COMPLETIONS, which the manifest sets; without it one task.
    """
    if "SLURM_ARRAY_TASK_ID" in environ:
        least = _read_number(environ, "SLURM_ARRAY_TASK_MIN", "0")
        number = _read_number(environ, "SLURM_ARRAY_TASK_ID") - least
        of = _read_number(environ, "SLURM_ARRAY_TASK_COUNT", "1")
        last = _read_number(environ, "SLURM_ARRAY_TASK_MAX", str(least + of - 1))
        if last - least + 1 != of:  # such as --array=3,7, of what failed
            raise UsageError(
                f"the array has {of:,} elements of {least} to {last}, and shares are of all of "
                "them: give --tasks, or submit by `penstock work --on slurm`"
            )
        return "SLURM_ARRAY_TASK_ID", list(range(number, count, of))
    if "JOB_COMPLETION_INDEX" in environ:
        number = _read_number(environ, "JOB_COMPLETION_INDEX")
        of = _read_number(environ, "PENSTOCK_COMPLETIONS", str(max(1, count)))
        return "JOB_COMPLETION_INDEX", list(range(number, count, of))
    return None


def _read_number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    text = environ.get(name, default)
    if not text.isdigit() or (int(text) < 1 and name in ("PENSTOCK_COMPLETIONS", _COUNT)):
        raise UsageError(f"{name} is {text!r}, and no number of an array's: unset it, or --tasks")
    return int(text)


def write_script(
    plan: WorkPlan, tasks: Sequence[int], command: Sequence[str], options: Sequence[str] = ()
) -> str:
    """Write the script of an array job that does these tasks, several an element if there are more
    than an array may have.

    command:  how `penstock` is called on the nodes.
    options:  more for sbatch, such as "--partition=short" or "--time=1:00:00".
    """
    each = -(-len(tasks) // _find_array_max())
    shares = [tasks[first : first + each] for first in range(0, len(tasks), each)]
    directives = [
        f"--job-name=penstock-{plan.about['what']}",
        f"--array=0-{len(shares) - 1}",
        f"--output={shlex.quote(os.path.join(plan.folder, 'slurm-%A_%a.out'))}",
        "--signal=B:USR1@60",  # a minute before the limit of time: the task at hand is finished
        *options,
    ]
    head = "\n".join(f"#SBATCH {directive}" for directive in directives)
    return f"""#!/bin/bash
{head}
# {len(tasks):,} of {len(plan):,} tasks of {plan.folder}; what is done is not again
SHARES=({" ".join(map(_join, shares))})
exec {shlex.join([*command, "work", plan.folder])} --tasks "${{SHARES[$SLURM_ARRAY_TASK_ID]}}"
"""


def submit_script(script: str) -> str:
    """Submit a script, and return what sbatch says."""
    if shutil.which("sbatch") is None:
        raise UsageError("there is no sbatch here: print the script by --dry-run, and submit it")
    done = subprocess.run(["sbatch"], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"sbatch refused the script: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def _find_array_max() -> int:
    """The most elements of an array: the cluster's MaxArraySize, or as many as by default."""
    if shutil.which("scontrol") is not None:
        said = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True)
        if found := re.search(r"MaxArraySize\s*=\s*(\d+)", said.stdout):
            return max(1, int(found[1]) - 1)
    return _ARRAY_MAX


def _join(tasks: Sequence[int]) -> str:
    """Join tasks to text, runs of them as 10:20."""
    parts: list[tuple[int, int]] = []
    for task in tasks:
        if parts and parts[-1][1] == task:
            parts[-1] = parts[-1][0], task + 1
        else:
            parts.append((task, task + 1))
    return ",".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in parts)
