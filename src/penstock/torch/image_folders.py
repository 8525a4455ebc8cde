"""torchvision's ImageFolder: what its data set would gain if penstock read it, and how to do that.

torchvision is not imported: the class is recognised by module and name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

import torch

from ..dataset.dataset import open as open_dataset
from ..errors import PenstockError, UsageError
from ..images.translation import from_torchvision
from ..loader.explain import DecodeGain
from ..loader.global_generators import list_moved, read_states, write_states
from ..order.augmentation import rng

_images_max = 24
_budget_s = 1.5
_listed_max = 20_000  # samples whose labels are compared before lines are named


def open_image_folder(dataset: Any, given: Mapping[str, Any], kind: Any) -> FolderReading | None:
    """Return the reading of a data set that is torchvision's ImageFolder, or a subclass; else None.

    given:  arguments of its loader, which is a `kind`.
    """
    name = "torchvision.datasets.folder", "ImageFolder"
    is_folder = any((kind.__module__, kind.__name__) == name for kind in type(dataset).__mro__)
    return FolderReading(dataset, given, kind) if is_folder else None


class FolderReading:
    """The same data set, read and decoded by penstock.

    problem:  reason why its images cannot be those of the core; "" if they can.
    note:     end of a sentence about a cheaper decode: that reason.
    """

    def __init__(self, dataset: Any, given: Mapping[str, Any], kind: Any) -> None:
        self._dataset, self._given, self._kind = dataset, given, kind
        self._gains: tuple[DecodeGain, ...] | None = None
        self._crop: Any = None
        self._options: dict[str, Any] = {}  # to open the folder
        self.problem = self._find_problem() or self._find_difference()
        self.note = f"; or penstock's own, but {self.problem}" if self.problem else ""

    def _find_problem(self) -> str:
        dataset = self._dataset
        if type(dataset).__getitem__.__qualname__ != "DatasetFolder.__getitem__":
            return f"{type(dataset).__name__} has its own __getitem__: make that a decode="
        if getattr(dataset.loader, "__name__", "") not in ("default_loader", "pil_loader"):
            return f"its loader= is {dataset.loader!r:.60}: make that a decode="
        if dataset.target_transform is not None:
            return "its target_transform= is yours: apply it to batch['label']"
        if dataset.extensions is None:
            return "its is_valid_file= is yours: give penstock.open(files=...)"
        for name in ("collate_fn", "sampler", "batch_sampler"):
            if self._given[name] is not None:
                return f"{name}= is of ImageFolder's samples: penstock.open has its own"
        if dataset.transform is None:
            return "it has no transform="
        try:
            self._crop = from_torchvision(dataset.transform)
        except UsageError as error:
            return str(error)
        return ""

    def _find_difference(self) -> str:
        """Return how penstock's samples of the folder differ, or "" and keep options to open it."""
        dataset, problem = self._dataset, ""
        if len(dataset) > _listed_max:
            return ""
        targets = np.bincount([label for _, label in dataset.samples], minlength=1)
        known: dict[str, Any] = {"extensions": list(dataset.extensions)}
        for options in ({}, known, known | {"split": ""}):
            try:
                opened = open_dataset(dataset.root, index="memory", **options)
            except (PenstockError, OSError) as error:
                problem = f"penstock.open refuses the folder: {error}"
                continue
            labels = opened.index.labels(np.arange(opened.index.count, dtype=np.uint64))
            counts = None if labels is None else np.bincount(labels, minlength=1)
            has_classes = list(opened.classes or ()) == list(dataset.classes)
            if has_classes and counts is not None and np.array_equal(counts, targets):
                self._options = options
                return ""
            problem = "penstock.open finds other files or classes in the folder"
        return problem

    def measure_gains(self, clock: Callable[[], float] = time.monotonic) -> tuple[DecodeGain, ...]:
        """Measure, once, what the core takes for some of the files, and torchvision.

        The generators of `random`, numpy and torch stay where they are. () if it gains nothing.
        """
        if self._gains is None:
            self._gains = () if self.problem else self._measure(clock)
        return self._gains

    def _measure(self, clock: Callable[[], float]) -> tuple[DecodeGain, ...]:
        dataset, began_s = self._dataset, clock()
        spent_ns = np.zeros(2, np.int64)
        images = 0
        numbers = np.unique(np.linspace(0, len(dataset) - 1, _images_max).astype(np.int64))
        states, threads = read_states(), torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker
        try:
            for turn, number in enumerate([numbers[0], *numbers]):
                try:
                    times = self._time_one(int(number))
                except Exception:  # a file that cannot be decoded: the run says so
                    continue
                if turn:  # the first one touches memory and loads modules
                    spent_ns += times
                    images += 1
                spent_s = clock() - began_s
                if turn and spent_s + spent_s / (turn + 1) > _budget_s:
                    break
        finally:
            torch.set_num_threads(threads)
            write_states(states, list_moved(states))
        if not images or spent_ns[1] >= spent_ns[0]:
            return ()
        gain = float(spent_ns[0] / max(1, spent_ns[1]))
        what = f"a thread decodes {gain:.1f} times as many, measured on {images} images"
        return (DecodeGain(gain, f"penstock's own decoding: {what}:\n{self._list_lines()}"),)

    def _time_one(self, number: int) -> tuple[int, int]:
        """Return the processor time of an image by torchvision and by the core, in ns."""
        began_ns = time.thread_time_ns()
        self._dataset[number]
        between_ns = time.thread_time_ns()
        with open(self._dataset.samples[number][0], "rb") as file:
            self._crop(file.read(), rng(0, 0, number))
        return between_ns - began_ns, time.thread_time_ns() - between_ns

    def _list_lines(self) -> str:
        """Return the lines of a script that read the folder by penstock."""
        usual = signature(self._kind).parameters
        options = "".join(
            f"{name}={repr(value) if isinstance(value, int | float | str | None) else name}, "
            for name, value in self._given.items()
            if name == "batch_size" or (name != "dataset" and value is not usual[name].default)
        )
        place = ", ".join(
            [repr(str(self._dataset.root)), *(f"{k}={v!r}" for k, v in self._options.items())]
        )
        options += 'decode=penstock.images.from_torchvision(transform), as_tuple=("image", "label")'
        return (
            "    import penstock\n    from penstock.torch import DataLoader\n"
            f"    dataset = penstock.open({place})\n    loader = DataLoader(dataset, {options})"
        )
