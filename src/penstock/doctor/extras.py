"""The extras of penstock: what each is for, and which of their packages are not installed."""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

PURPOSES = {
    "cli": "look at data, index it, convert it: the other commands of penstock",
    "images": "decode JPEG, PNG, WebP and TIFF",
    "text": "JSON lines, tokens",
    "parquet": "Parquet, compressed Arrow",
    "hdf5": "HDF5",
    "zarr": "compressed Zarr",
    "zstd": "compressed JSON lines, LitData",
    "lmdb": "write LMDB",
    "cloud": "read s3://, gs://, az:// and https://",
    "hub": "read hf://",
    "torch": "train with PyTorch",
    "gpu": "shuffle on a GPU",
    "jax": "train with JAX",
    "keras": "train with Keras",
    "grain": "penstock under Grain",
    "torchdata": "penstock under torchdata.nodes",
    "ray": "train with Ray, load Ray Data",
    "cluster": "share a cache among hosts",
    "mpi": "run under mpiexec",
    "metrics": "serve counters to Prometheus",
    "bench": "run DLIO and MLPerf Storage workloads",
    "sim": "simulate a cluster, plan one",
}
"""Purpose of each extra, in the order in which they are shown."""

_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*\bextra\s*==\s*["']([a-z0-9-]+)["']""")


class Extra(NamedTuple):
    """An extra, its purpose, and the names of its packages that are not installed."""

    name: str
    purpose: str
    missing: tuple[str, ...]


def list_extras() -> list[Extra]:
    """The extras that have a purpose, as the installed penstock names their packages.

    Empty if penstock is not installed but only on the path. Packages of an extra in an extra are
    looked for too.
    """
    try:
        requirements = metadata.requires("penstock") or []
    except metadata.PackageNotFoundError:
        return []
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        if match := _REQUIREMENT.match(requirement):
            own = re.match(r"penstock\[([a-z0-9,-]+)\]", requirement)
            wanted = [f"[{each}]" for each in own[1].split(",")] if own else [match[1]]
            packages.setdefault(match[2], []).extend(wanted)
    return [
        Extra(name, purpose, tuple(sorted(filter(_is_missing, _expand(name, packages)))))
        for name, purpose in PURPOSES.items()
        if name in packages
    ]


def _expand(name: str, packages: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    for package in packages.get(name, ()):
        found |= _expand(package[1:-1], packages) if package.startswith("[") else {package}
    return found


def _is_missing(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return True
    return False
