"""The benchmark: DLIO and MLPerf Storage workloads, any loader, one report. See docs/bench.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import hand_out

if TYPE_CHECKING:
    from . import compare as compare
    from . import outputs as outputs
    from . import recorded as recorded
    from . import replay as replay
    from . import replay_engine as replay_engine
    from . import replay_files as replay_files
    from . import report as report
    from . import trace_sources as trace_sources
    from . import trace_strace as trace_strace
    from .checkpoints import run_checkpoints as run_checkpoints
    from .compare import judge_ratio as judge_ratio
    from .contenders import PACKAGES as PACKAGES
    from .contenders import check as check
    from .contenders import open_samples as open_samples
    from .delivered import compute_checksum as compute_checksum
    from .files import PARTS as PARTS
    from .files import find_paths as find_paths
    from .files import folder_of as folder_of
    from .generate import generate_data as generate_data
    from .headline import factor as factor
    from .metrics import interval as interval
    from .ranks import Crew as Crew
    from .ranks import detect_launch as detect_launch
    from .ranks import launch as launch
    from .record import make_record as make_record
    from .record import make_run as make_run
    from .replay import ReplayOutcome as ReplayOutcome
    from .replay_engine import Merged as Merged
    from .replay_files import read_once as read_once
    from .report import render_page as render_page
    from .result_files import read_record as read_record
    from .run import BenchJob as BenchJob
    from .run import Walks as Walks
    from .run import run_workload as run_workload
    from .sample_contents import KINDS as KINDS
    from .sizes import MODELS as MODELS
    from .trace_summary import summarise as summarise
    from .verdict import Verdicts as Verdicts
    from .workload import DlioWorkload as DlioWorkload
    from .workload import as_dict as as_dict
    from .workload import hide_secrets as hide_secrets
    from .workload import parse_overrides as parse_overrides
    from .workload import preset_names as preset_names
    from .workload import read_workload as read_workload
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "checkpoints": "run_checkpoints",
            "compare": "compare judge_ratio",
            "contenders": "PACKAGES check open_samples",
            "sample_contents": "KINDS",
            "delivered": "compute_checksum",
            "files": "PARTS folder_of find_paths",
            "generate": "generate_data",
            "headline": "factor",
            "metrics": "interval",
            "outputs": "outputs",
            "ranks": "Crew launch detect_launch",
            "record": "make_record make_run",
            "recorded": "recorded",
            "replay": "ReplayOutcome replay",
            "replay_engine": "Merged replay_engine",
            "replay_files": "replay_files read_once",
            "report": "render_page report",
            "result_files": "read_record",
            "run": "BenchJob Walks run_workload",
            "sizes": "MODELS",
            "trace_sources": "trace_sources",
            "trace_strace": "trace_strace",
            "trace_summary": "summarise",
            "verdict": "Verdicts",
            "workload": "DlioWorkload as_dict hide_secrets parse_overrides preset_names "
            "read_workload",
        },
    )
