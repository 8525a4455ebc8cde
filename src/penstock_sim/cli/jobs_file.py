"""The file of `penstock schedule`: a storage, the jobs that transfer through it, and ordered tasks.

    bandwidth: 10GB/s
    periodic:
      - {name: climate, count: 4, compute_s: 70, transfer: 200GB, rate: 4GB/s, weight: 2048}
    exclusive:
      capacity: {index: 1, data: 4}
      jobs:
        - {name: reader, count: 8, tasks: [index, data]}

Every key is checked; a value may be a number of bytes or a text such as 200GB or 4GiB/s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from penstock import limits
from penstock.arguments import suggest_path
from penstock.cli.quantities import parse_bytes
from penstock.errors import UsageError

from .. import explain_error, parse_mapping, schedule

try:
    import pydantic
except ModuleNotFoundError as error:
    raise UsageError(
        f"penstock schedule needs {error.name}: install it with pip install 'penstock[sim]'"
    ) from None


def _parse_bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


Bytes = Annotated[
    float,
    pydantic.BeforeValidator(_parse_bytes),
    pydantic.Field(gt=0, allow_inf_nan=False, strict=True),
]
Count = Annotated[int, pydantic.Field(ge=1, le=limits.schedule_jobs_max, strict=True)]


class JobsFilePart(pydantic.BaseModel):
    """A mapping of the file: every key is known, and nothing changes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class PeriodicEntry(JobsFilePart):
    """Jobs that are alike: each computes `compute_s`, then transfers, again and again.

    transfer:  bytes of each transfer.
    rate:      bytes per second that the job's own nodes can take or give; by default the storage's.
    weight:    of each job in the efficiency, such as its nodes.
    """

    name: str
    count: Count = 1
    compute_s: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    transfer: Bytes
    rate: Bytes | None = None
    weight: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = 1.0


class ExclusiveEntry(JobsFilePart):
    """Jobs that are alike: each has these tasks in order, one slot a task.

    tasks:  the resource of each task, or "shared" for one that everybody may use at once.
    """

    name: str
    count: Count = 1
    tasks: Annotated[list[str], pydantic.Field(min_length=1, max_length=limits.schedule_tasks_max)]


class ExclusiveSection(JobsFilePart):
    """Tasks that use resources exclusively. capacity: tasks that each resource has at a time."""

    capacity: Annotated[
        dict[str, Count], pydantic.Field(min_length=1, max_length=limits.schedule_tasks_max)
    ]
    jobs: Annotated[list[ExclusiveEntry], pydantic.Field(min_length=1)]


class JobsFile(JobsFilePart):
    """All of the file; one of `periodic` and `exclusive`, or both."""

    bandwidth: Bytes | None = None
    periodic: list[PeriodicEntry] = []
    exclusive: ExclusiveSection | None = None


def read_jobs(path: Path) -> JobsFile:
    """Read and check a file. Raises UsageError, a line for each problem with key and value."""
    try:
        if path.stat().st_size > limits.schedule_file_bytes_max:
            raise UsageError(
                f"{path} has more than schedule_file_bytes_max"
                f" {limits.schedule_file_bytes_max:,} bytes: give a file of jobs"
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist{suggest_path(str(path))}: name a YAML file of jobs"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    values = parse_mapping(text, str(path), "begin with bandwidth, periodic or exclusive")
    try:
        jobs = JobsFile.model_validate(values)
    except pydantic.ValidationError as error:
        lines = (explain_error(str(path), each, "a file of jobs") for each in error.errors())
        raise UsageError("\n".join(lines)) from None
    if not jobs.periodic and jobs.exclusive is None:
        raise UsageError(f"{path} has no jobs: list some under periodic or exclusive")
    if jobs.periodic and jobs.bandwidth is None:
        raise UsageError(f"{path}: bandwidth is missing: periodic jobs share it, such as 10GB/s")
    total = sum(entry.count for entry in jobs.periodic)
    total += sum(entry.count for entry in jobs.exclusive.jobs) if jobs.exclusive else 0
    if total > limits.schedule_jobs_max:
        raise UsageError(
            f"{path} has {total:,} jobs, more than schedule_jobs_max {limits.schedule_jobs_max:,}:"
            " give fewer"
        )
    return jobs


def expand_periodic(jobs: JobsFile) -> tuple[list[str], list[schedule.PeriodicJob]]:
    """The periodic jobs one by one, with their names."""
    assert jobs.bandwidth is not None
    names, periodic = [], []
    for entry in jobs.periodic:
        job = schedule.PeriodicJob(
            entry.compute_s, entry.transfer, entry.rate or jobs.bandwidth, entry.weight
        )
        names += _number_names(entry.name, entry.count)
        periodic += [job] * entry.count
    return names, periodic


def expand_exclusive(
    section: ExclusiveSection,
) -> tuple[list[str], list[str], list[list[int]], list[int]]:
    """Names of the ordered jobs one by one and of the resources, and the tasks and capacities as
    `list_schedule` takes them. Raises UsageError for a resource without a capacity."""
    resources = list(section.capacity)
    numbers = {name: number for number, name in enumerate(resources)} | {"shared": schedule.SHARED}
    names: list[str] = []
    tasks: list[list[int]] = []
    for entry in section.jobs:
        unknown = [name for name in entry.tasks if name not in numbers]
        if unknown:
            raise UsageError(
                f"exclusive.jobs: {entry.name} uses {unknown[0]!r}, which has no capacity: use one"
                f" of {', '.join(numbers)}"
            )
        names += _number_names(entry.name, entry.count)
        tasks += [[numbers[name] for name in entry.tasks]] * entry.count
    return names, resources, tasks, list(section.capacity.values())


def _number_names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {number}" for number in range(1, count + 1)]
