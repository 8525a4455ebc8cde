"""`penstock schedule`: when periodic and ordered transfers run, beside the rules and the bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from pydantic import BeforeValidator, Field

from penstock import limits
from penstock.cli import AsJson, check_writable, console, explain_interrupt, setting
from penstock.cli.quantities import parse_bytes
from penstock.errors import LimitError, UsageError
from penstock_bench.page.files import results_alone, write_page

from .. import parse_mapping
from .. import schedule as schedules
from ..scenario import Amount, Spread, StrictModel, read_file

_drawn_max = 40
"""Jobs that the page draws; the table has all."""


# -- the file --------------------------------------------------------------------------------------

_Bytes = Annotated[
    float,
    BeforeValidator(lambda value: parse_bytes(value) if isinstance(value, str) else value),
    Field(gt=0, allow_inf_nan=False),
]
_Count = Annotated[int, Field(ge=1, le=limits.schedule_jobs_max)]


class _JobsPart(StrictModel):
    """A mapping of the file, whose values may be a number of bytes or a text such as 4GiB/s."""

    content: ClassVar[str] = "a file of jobs"


class PeriodicEntry(_JobsPart):
    """Jobs that are alike: each computes `compute_s`, then transfers, again and again.

    transfer:  bytes of each transfer.
    rate:      bytes per second that the job's own nodes can take or give; by default the storage's.
    weight:    of each job in the efficiency, such as its nodes.
    """

    name: str
    count: _Count = 1
    compute_s: Spread
    transfer: _Bytes
    rate: _Bytes | None = None
    weight: Amount = 1.0


class ExclusiveEntry(_JobsPart):
    """Jobs that are alike: each has these tasks in order, one slot a task.

    tasks:  the resource of each task, or "shared" for one that everybody may use at once.
    """

    name: str
    count: _Count = 1
    tasks: Annotated[list[str], Field(min_length=1, max_length=limits.schedule_tasks_max)]


class ExclusiveSection(_JobsPart):
    """Tasks that use resources exclusively. capacity: tasks that each resource has at a time."""

    capacity: Annotated[
        dict[str, _Count], Field(min_length=1, max_length=limits.schedule_tasks_max)
    ]
    jobs: Annotated[list[ExclusiveEntry], Field(min_length=1)]


class JobsFile(_JobsPart):
    """All of the file; one of `periodic` and `exclusive`, or both."""

    bandwidth: _Bytes | None = None
    periodic: list[PeriodicEntry] = Field(default_factory=list)
    exclusive: ExclusiveSection | None = None


def _read_jobs(path: Path) -> JobsFile:
    """Read and check a file. Raises UsageError, a line for each problem with key and value."""
    text = read_file(path, "jobs file", limits.schedule_file_bytes_max)
    values = parse_mapping(text, str(path), "begin with bandwidth, periodic or exclusive")
    jobs = JobsFile.of(values, str(path))
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


def _expand_periodic(jobs: JobsFile) -> tuple[list[str], list[schedules.PeriodicJob]]:
    """The periodic jobs one by one, with their names."""
    assert jobs.bandwidth is not None
    names, periodic = [], []
    for entry in jobs.periodic:
        job = schedules.PeriodicJob(
            entry.compute_s, entry.transfer, entry.rate or jobs.bandwidth, entry.weight
        )
        names += _number_names(entry.name, entry.count)
        periodic += [job] * entry.count
    return names, periodic


def _expand_exclusive(
    section: ExclusiveSection,
) -> tuple[list[str], list[str], list[list[int]], list[int]]:
    """Names of the ordered jobs one by one and of the resources, and the tasks and capacities as
    `list_schedule` takes them. Raises UsageError for a resource without a capacity."""
    resources = list(section.capacity)
    numbers = {name: number for number, name in enumerate(resources)} | {"shared": schedules.SHARED}
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


# -- schedules -------------------------------------------------------------------------------------


class PlannedTransfers(NamedTuple):
    """Periodic jobs, with what each schedule gives them: efficiency and dilation.

    pattern:   the best that PerSched finds; None if it would be too long, with the reason.
    outcomes:  name, efficiency and dilation of each schedule, the bound first.
    """

    names: list[str]
    jobs: list[schedules.PeriodicJob]
    bandwidth: float
    pattern: schedules.Pattern | None
    reason: str
    outcomes: list[tuple[str, float, float]]


class PlannedTasks(NamedTuple):
    """Ordered tasks with the slot of each. used: all slots; bound: the least slots."""

    names: list[str]
    resources: list[str]
    tasks: list[list[int]]
    slots: list[list[int]]
    used: int
    bound: int


@explain_interrupt()
def schedule(
    jobs: Annotated[Path, typer.Argument(help="A YAML file, as shown here.")],
    objective: str = setting(
        "efficiency", "What patterns are compared by: efficiency or dilation."
    ),
    output: Path | None = setting(
        None, "Write a page with the pattern drawn, too.", "--output", "-o"
    ),
    as_json: AsJson = False,
) -> None:
    """Plan when jobs transfer through a storage that they share.

    For periodic jobs (compute, transfer, compute, ...) the pattern of PerSched is compared with
    the online rules, decided whenever a transfer starts or ends, and with the fluid bound that no
    schedule exceeds. Efficiency is the fraction of time that jobs compute; dilation is how many
    times longer a cycle of the job that suffers most takes than alone. For jobs of ordered tasks,
    each on a resource that few may use at a time, it finds a schedule in slots.

    The file:

      bandwidth: 10GB/s
      periodic:
      - {name: climate, count: 4, compute_s: 70, transfer: 200GB, rate: 4GB/s}
      exclusive:
        capacity: {index: 1, data: 4}
        jobs:
        - {name: reader, tasks: [index, data]}

    Examples:

      penstock schedule jobs.yaml

      penstock schedule jobs.yaml --objective dilation --output schedule.html
    """
    check_writable(output)
    with results_alone(as_json):
        file = _read_jobs(jobs)
        transfers = _plan_transfers(file, objective) if file.periodic else None
        tasks = _plan_tasks(file.exclusive) if file.exclusive is not None else None
        if transfers is not None:
            _show_transfers(transfers)
        if tasks is not None:
            _show_tasks(tasks)
        if output is not None:
            write_page(output, _render(str(jobs.name), transfers, tasks))
    if as_json:
        console.print_json(_as_json(transfers, tasks))


def _plan_transfers(file: JobsFile, objective: Any) -> PlannedTransfers:
    assert file.bandwidth is not None
    names, jobs = _expand_periodic(file)
    bound = schedules.fluid_bounds(jobs, file.bandwidth)
    outcomes = [("fluid bound", bound.efficiency, bound.dilation)]
    pattern, reason = None, ""
    with console.show_progress("Planning transfers", "schedules") as progress:
        count = 2 + len(schedules.RULES)
        try:
            pattern = schedules.plan_periodic(jobs, file.bandwidth, objective=objective)
            outcomes.append(("PerSched", *pattern.outcome))
        except LimitError as error:
            reason = str(error)
        progress(1, count)
        for number, rule in enumerate((*schedules.RULES, schedules.Rule("fair"))):
            outcomes.append(
                (f"{rule.name} (online)", *schedules.simulate(jobs, file.bandwidth, rule))
            )
            progress(number + 2, count)
    return PlannedTransfers(names, jobs, file.bandwidth, pattern, reason, outcomes)


def _plan_tasks(section: ExclusiveSection) -> PlannedTasks:
    names, resources, tasks, capacity = _expand_exclusive(section)
    if all(len(job) == 2 for job in tasks):
        first, second = [job[0] for job in tasks], [job[1] for job in tasks]
        slots = schedules.two_tasks(first, second, capacity).tolist()
        bound = schedules.two_task_bound(first, second, capacity)
    else:
        slots = [job.tolist() for job in schedules.list_schedule(tasks, capacity)]
        bound = schedules.lower_bound(tasks, capacity)
    used = 1 + max(job[-1] for job in slots)
    return PlannedTasks(names, resources, tasks, slots, used, bound)


def _show_transfers(plan: PlannedTransfers) -> None:
    table = console.make_table(
        "schedule", "efficiency", "dilation", right=("efficiency", "dilation")
    )
    for name, efficiency, dilation in plan.outcomes:
        style = {"fluid bound": "italic", "PerSched": "bold"}.get(name)
        table.add_row(name, f"{efficiency:.4f}", f"{dilation:.3f}", style=style)
    console.print_wide(table)
    if plan.pattern is None:
        console.show(f"PerSched was not searched: {console.escape(plan.reason)}")
        return
    pattern = plan.pattern
    console.show(f"the pattern repeats every {pattern.period_s:.6g} s")
    numbers = ("cycles", "first transfer, s", "seconds of it")
    table = console.make_table("job", *numbers, right=numbers)
    for name, transfers in zip(plan.names, pattern.transfers, strict=True):
        first = transfers[0]
        took_s = first[-1].end_s - first[0].start_s
        table.add_row(name, f"{len(transfers)}", f"{first[0].start_s:.6g}", f"{took_s:.6g}")
    console.print_wide(table)


def _show_tasks(plan: PlannedTasks) -> None:
    least = "which no schedule beats" if plan.used == plan.bound else f"the bound is {plan.bound}"
    console.show(f"ordered tasks: {plan.used} slots, {least}")
    table = console.make_table("job", "task @ slot")
    names = [*plan.resources, "shared"]
    for name, tasks, slots in zip(plan.names, plan.tasks, plan.slots, strict=True):
        steps = zip(tasks, slots, strict=True)
        table.add_row(name, "  ".join(f"{names[task]} @ {slot}" for task, slot in steps))
    console.print_wide(table)


def _render(name: str, transfers: PlannedTransfers | None, tasks: PlannedTasks | None) -> str:
    from penstock_bench.page import render

    bars = []
    if transfers is not None and transfers.pattern is not None:
        period_s = transfers.pattern.period_s
        for job, cycles in zip(transfers.names, transfers.pattern.transfers, strict=True):
            spans = [
                (stretch.start_s / period_s % 1, (stretch.end_s - stretch.start_s) / period_s)
                for transfer in cycles
                for stretch in transfer
            ]
            bars.append((job, _wrap_spans(spans)))
    return render(
        "schedule.html",
        name=name,
        title=f"{name} – penstock schedule",
        generator="penstock schedule",
        transfers=transfers,
        bars=bars[:_drawn_max],
        hidden=max(0, len(bars) - _drawn_max),
        tasks=tasks,
    )


def _wrap_spans(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Start and length of each span as shares of the period, cut where the period ends."""
    cut = []
    for start, length in spans:
        cut.append((start, min(length, 1 - start)))
        if start + length > 1:
            cut.append((0.0, start + length - 1))
    return cut


def _as_json(transfers: PlannedTransfers | None, tasks: PlannedTasks | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if transfers is not None:
        values["periodic"] = {
            "bandwidth": transfers.bandwidth,
            "outcomes": [
                {"schedule": name, "efficiency": efficiency, "dilation": dilation}
                for name, efficiency, dilation in transfers.outcomes
            ],
            "pattern": None
            if transfers.pattern is None
            else {
                "period_s": transfers.pattern.period_s,
                "transfers": dict(zip(transfers.names, transfers.pattern.transfers, strict=True)),
            },
        }
    if tasks is not None:
        values["exclusive"] = {
            "slots": dict(zip(tasks.names, tasks.slots, strict=True)),
            "used": tasks.used,
            "bound": tasks.bound,
        }
    return values
