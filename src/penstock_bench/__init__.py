"""The benchmark: DLIO and MLPerf Storage workloads, any loader, one report. See docs/bench.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import hand_out

if TYPE_CHECKING:
    from .checkpoints.run import run_checkpoints as run_checkpoints
    from .contenders import PACKAGES as PACKAGES
    from .data.generate import generate_data as generate_data
    from .ranks import launch as launch
    from .results.dlio import read_record as read_record
    from .results.record import make_record as make_record
    from .results.record import make_run as make_run
    from .results.report import render_page as render_page
    from .run import BenchJob as BenchJob
    from .run import run_workload as run_workload
    from .workload import DlioWorkload as DlioWorkload
    from .workload import as_dict as as_dict
    from .workload import preset_names as preset_names
    from .workload import read_workload as read_workload
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "checkpoints.run": "run_checkpoints",
            "contenders": "PACKAGES",
            "data.generate": "generate_data",
            "ranks": "launch",
            "results.dlio": "read_record",
            "results.record": "make_record make_run",
            "results.report": "render_page",
            "run": "BenchJob run_workload",
            "workload": "DlioWorkload as_dict preset_names read_workload",
        },
    )
