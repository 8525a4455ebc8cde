"""The benchmark: DLIO and MLPerf Storage workloads, any loader, one report. See docs/bench.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import hand_out

if TYPE_CHECKING:
    from . import compare as compare
    from . import outputs as outputs
    from . import overrides as overrides
    from . import record as record
    from . import recorded as recorded
    from . import replay as replay
    from . import replay_engine as replay_engine
    from . import replay_files as replay_files
    from . import report as report
    from . import trace_sources as trace_sources
    from . import trace_strace as trace_strace
    from .checkpoints import run_checkpoints as run_checkpoints
    from .compare import judge_comparison as judge_comparison
    from .contenders import check as check
    from .contenders import opened as opened
    from .contents import KINDS as KINDS
    from .delivered import checksum as checksum
    from .files import PARTS as PARTS
    from .files import folder_of as folder_of
    from .files import found_paths as found_paths
    from .generate import generate_data as generate_data
    from .headline import factor as factor
    from .metrics import interval as interval
    from .overrides import shown as shown
    from .ranks import Crew as Crew
    from .ranks import launch as launch
    from .ranks import launched as launched
    from .record import as_run as as_run
    from .replay import Outcome as Outcome
    from .replay_engine import Merged as Merged
    from .replay_files import warm as warm
    from .report import render_page as render_page
    from .results import read as read
    from .run import Job as Job
    from .run import Walks as Walks
    from .run import run_workload as run_workload
    from .sizes import MODELS as MODELS
    from .strict import as_dict as as_dict
    from .strict import read_workload as read_workload
    from .trace_summary import summary as summary
    from .verdict import Verdicts as Verdicts
    from .workload import Workload as Workload
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "checkpoints": "run_checkpoints",
            "compare": "compare judge_comparison",
            "contenders": "check opened",
            "contents": "KINDS",
            "delivered": "checksum",
            "files": "PARTS folder_of found_paths",
            "generate": "generate_data",
            "headline": "factor",
            "metrics": "interval",
            "outputs": "outputs",
            "overrides": "overrides shown",
            "ranks": "Crew launch launched",
            "record": "as_run record",
            "recorded": "recorded",
            "replay": "Outcome replay",
            "replay_engine": "Merged replay_engine",
            "replay_files": "replay_files warm",
            "report": "render_page report",
            "results": "read",
            "run": "Job Walks run_workload",
            "sizes": "MODELS",
            "strict": "as_dict read_workload",
            "trace_sources": "trace_sources",
            "trace_strace": "trace_strace",
            "trace_summary": "summary",
            "verdict": "Verdicts",
            "workload": "Workload",
        },
    )
