"""`penstock bench generate`: the data of a workload."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import limits
from penstock.arguments import check_choice
from penstock.cli import GOES_ON, console, explain_interrupt, setting
from penstock.errors import UsageError
from penstock.ranks import detect

from ..data import PARTS
from ..data.samples import KINDS, MODELS
from .bench import complete_workload

if TYPE_CHECKING:
    from ..data.generate import Generated
    from ..workload import DlioWorkload


@explain_interrupt(GOES_ON)
def generate(
    workload: Annotated[
        str,
        typer.Argument(
            help="A name that `penstock bench list` shows, or the path of a .yaml file of DLIO.",
            autocompletion=complete_workload,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="As DLIO takes them: ++workload.dataset.num_files_train=100."),
    ] = None,
    part: str = setting("all", f"{', '.join(PARTS)}, or all."),
    contents: str = setting("random", f"One of {', '.join(KINDS)}."),
    sizes: str = setting(
        "normal", f"One of {', '.join(MODELS)}, or a file with a size on each line."
    ),
    seed: int = setting(10, "Of sizes and contents.", min=0, max=2**63 - 1),
    workers: int | None = setting(
        None, "Threads that write.", min=1, show_default="two a core, 16 at most"
    ),
    force: bool = setting(False, "Replace other data that is there."),
    yes: bool = setting(
        False, f"Generate more than {limits.generated_bytes_max / 1e9:g} GB.", "--yes"
    ),
) -> None:
    """Write the data of a workload, or what is missing of it.

    Sizes have exactly the mean and the deviation that the workload says; --sizes dlio gives DLIO's
    instead. The bytes are the same for one seed, however many threads and ranks write them:
    below mpiexec, srun or torchrun each rank writes its share. A run that was ended is gone on with
    by the same command.

    contents: random bytes; compressible ones that gzip halves; or field, smooth fields with noise
    that compress as data of simulations and detectors does.

    Examples:

      penstock bench generate unet3d_h100 ++workload.dataset.data_folder=/data/unet3d

      penstock bench generate mine.yaml ++workload.dataset.num_files_train=1000 --contents field

      mpiexec -n 8 penstock bench generate resnet50_h100 --part train
    """
    from ..workload import read_workload

    check_choice("--part", part, (*PARTS, "all"))
    result = generate_parts(
        read_workload(workload, overrides or (), warn=console.say),
        yes,
        parts=PARTS if part == "all" else (part,),
        seed=seed,
        sizes=sizes if sizes in MODELS else read_sizes(sizes),
        kind=contents,
        threads=workers,
        force=force,
    )
    rate = result.written_bytes / max(result.seconds, 1e-9) / 1e6
    console.show(
        f"[bold]{console.escape(result.folder)}[/]: {result.files:,} files, "
        f"{console.format_bytes(result.bytes)} of samples; {result.written:,} of them written in "
        f"{result.seconds:.1f} s ({rate:,.0f} MB/s)"
    )


def generate_parts(workload: DlioWorkload, yes: bool, **options: Any) -> Generated:
    """Generate this rank's share of a workload's data, as `generate_data` does, and show progress.

    yes:  more than `limits.generated_bytes_max`, too.
    """
    from ..data.generate import generate_data
    from ..data.places import set_environment

    data, place = workload.dataset, detect(None, None, os.environ, sys.modules)
    set_environment(workload.storage)
    with console.show_progress(f"Generating {data.data_folder}", "MB") as progress:
        return generate_data(
            data,
            root=workload.storage.data_root,
            rank=place.rank,
            ranks=place.world_size,
            bytes_max=None if yes else limits.generated_bytes_max,
            progress=lambda done, total: progress(done / 1e6, total / 1e6),
            **options,
        )


def read_sizes(path: str) -> list[float]:
    """Read the sizes of an empirical model: one on each line, in bytes.

    Empty lines and those that start with "#" are skipped.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"sizes {path!r} cannot be read ({error}): use {', '.join(MODELS)} or the path of a "
            f"text file with a size in bytes on each line"
        ) from None
    sizes = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            try:
                sizes.append(float(line))
            except ValueError:
                sizes.append(-1.0)
            if not 1 <= sizes[-1] < 2**53:
                raise UsageError(f"{path}, line {number}: {line!r} is no size in bytes from 1 on")
    if not sizes:
        raise UsageError(f"{path} holds no sizes: write one in bytes on each line")
    return sizes
