"""Workloads: the values of DLIO's sections, and the files and overrides that they are read from."""

from __future__ import annotations

from .overrides import Overrides, hide_secrets, parse_overrides
from .reading import as_dict, describe_preset, preset_names, read_workload
from .sections import DlioWorkload

__all__ = [
    "DlioWorkload",
    "Overrides",
    "as_dict",
    "describe_preset",
    "hide_secrets",
    "parse_overrides",
    "preset_names",
    "read_workload",
]
