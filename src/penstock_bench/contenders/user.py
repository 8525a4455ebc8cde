"""The user's own loader, unchanged: any function that gives an iterable of batches."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import UsageError

from .delivery import DeliveryTask


class User:
    """The loader that the user's `module:function` returns.

    The function is given what it takes by name: path, batch_size, rank, world_size, seed and
    epochs. If the loader (or its `sampler`) has set_epoch, that is called for each epoch;
    if it can be iterated only once, the function is called again for the next epoch.
    """

    def __init__(self, name: str, task: DeliveryTask) -> None:
        function = _import_function(name)
        given = {
            "path": task.folder,
            "batch_size": task.batch_size,
            "rank": task.rank,
            "world_size": task.ranks,
            "seed": task.seed,
            "epochs": task.epochs,
        }
        taken = _choose_arguments(name, function, given)
        self._make: Callable[[], Any] = lambda: function(**taken)
        self._loader: Any = self._make()
        self._begun = False
        self.settings = {"function": name, **taken}
        if not isinstance(self._loader, Iterable):
            raise UsageError(
                f"--loader {name} returned a {type(self._loader).__name__}, which cannot be "
                "iterated: return an iterable of batches"
            )

    def batches(self, epoch: int) -> Iterable[Any]:
        if self._begun and isinstance(self._loader, Iterator):
            self._loader = self._make()
        self._begun = True
        for owner in (self._loader, getattr(self._loader, "sampler", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        batches: Iterable[Any] = self._loader
        return batches

    def close(self) -> None:
        close = getattr(self._loader, "close", None)
        if callable(close):
            close()
        self._loader = None


def _import_function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise UsageError(
                f"--loader {name}: there is no module {module_name!r} here ({here}) or on "
                "PYTHONPATH"
            ) from None
        raise
    function = getattr(module, function_name, None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise UsageError(
            f"--loader {name}: {module.__file__} has no function {function_name!r}"
            + (f"; it has {there}" if there else "")
        )
    loader_function: Callable[..., Any] = function
    return loader_function


def _choose_arguments(
    name: str, function: Callable[..., Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Choose the values that the function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return given
    for parameter in parameters:
        needed = (
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        )
        if needed and (parameter.name not in given or parameter.kind is parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"--loader {name} wants {parameter.name!r}, which is not known here: give it a "
                f"default (known by name are {', '.join(given)})"
            )
    names = {parameter.name for parameter in parameters}
    return {key: value for key, value in given.items() if key in names}
