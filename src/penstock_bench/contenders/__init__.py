"""Contenders: the loaders under measurement, each behind one small class.

A contender hands over real bytes in the form that its users get. One is made for each run, on
each rank, and is told what to deliver by a `DeliveryTask`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_choice
from penstock.errors import UsageError
from penstock.lazy_exports import hand_out

if TYPE_CHECKING:
    from .delivery import Contender as Contender
    from .delivery import DeliveryTask as DeliveryTask
    from .penstock import choose_decode as choose_decode
    from .penstock import open_task as open_task
    from .samples import open_samples as open_samples


PACKAGES = {
    "penstock": (),
    "torch": ("torch",),
    "grain": ("grain",),
    "litdata": ("litdata", "torch"),
    "ffcv": ("ffcv", "torch"),
    "webdataset": ("webdataset",),
    "spdl": ("spdl",),
    "penstock-bytes": (),
    "none": (),
}
"""The contenders that need no code of the user's, and what has to be installed for each. "none"
hands over the same batch again and again: reading switched off; "penstock-bytes" the bytes of
files, of which nothing is decoded."""
NO_SAMPLES = ("penstock-bytes", "none")
"""The contenders that deliver no decoded samples, so that there is nothing to verify."""
OF_OBJECTS = ("penstock", *NO_SAMPLES)
"""The contenders that read object stores."""

_CLASSES = {
    "penstock": "penstock.Penstock",
    "penstock-bytes": "penstock.PenstockBytes",
    "torch": "libraries.Torch",
    "grain": "libraries.Grain",
    "litdata": "libraries.LitData",
    "ffcv": "libraries.Ffcv",
    "webdataset": "libraries.WebDataset",
    "spdl": "libraries.Spdl",
    "none": "libraries.Nothing",
}

FORMATS = {"webdataset": ("tar",)}
"""The formats of contenders that do not read them all."""


def check(name: str, format: str, objects: bool = False, verify: bool = False) -> None:
    """Raise UsageError if a contender is not known, not installed, or does not read the format, or
    objects, or has nothing to verify."""
    if ":" in name:
        return
    check_choice("--loader", name, PACKAGES, ", or module:function for a loader of your own")
    if verify and name in NO_SAMPLES:
        what = f"--verify compares decoded samples, which --loader {name} does not deliver"
        raise UsageError(f"{what}: leave one of them out")
    if objects and name not in OF_OBJECTS:
        what = f"--loader {name} reads files, and the data are objects"
        raise UsageError(f"{what}: take {', '.join(OF_OBJECTS)}, or module:function")
    for package in PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"--loader {name} needs {package}: pip install {package}")
    if format not in FORMATS.get(name, (format,)):
        raise UsageError(
            f"--loader {name} reads {', '.join(FORMATS[name])}, and dataset.format is {format!r}: "
            f"generate the data as {FORMATS[name][0]}, or leave this loader out"
        )


def make(name: str, task: DeliveryTask) -> Contender:
    """The contender of this name, or of the user's module:function."""
    if ":" in name:
        from .libraries import User

        return User(name, task)
    made: Contender = _load_class(name)(task)
    return made


def converts(name: str) -> bool:
    """True if the data is converted to a contender's format first."""
    return name in ("litdata", "ffcv")


def convert(name: str, task: DeliveryTask) -> None:
    """Convert the data of a part into `task.place`, for a contender that needs it."""
    _load_class(name).convert(task)


def _load_class(name: str) -> Any:
    module, class_name = _CLASSES[name].split(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), class_name)


if not TYPE_CHECKING:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "penstock": "choose_decode open_task",
            "samples": "open_samples",
            "delivery": "Contender DeliveryTask",
        },
    )
