"""Checks of arguments, each with one wording: "Budget.threads is 0: use a whole number from 1 on".

`check_whole("window", window)` checks one argument of a function. A dataclass declares a check for
each field, and calls `check_fields` in its `__post_init__`:

    @dataclass(frozen=True)
    class Budget:
        threads: int | None = field(default=None, metadata=whole(1, 256))
        fast: Fast = field(default="auto", metadata=choice(Fast))  # Fast = Literal["auto", "off"]

        def __post_init__(self) -> None:
            check_fields(self)

A field whose default is None may be None.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache, partial
from numbers import Real
from types import SimpleNamespace
from typing import Any, TypeVar, get_args

import numpy as np

from .errors import UsageError

Path = str | bytes | os.PathLike[str]
Kind = TypeVar("Kind")
Check = Callable[[str, object], Any]
"""Function of an argument's name and value that returns the value to use, or raises UsageError."""
Spec = Mapping[str, Check]
"""Metadata of a field that declares its check."""

_shown_max = 1 << 20
"""Largest upper bound that every message shows. Larger bounds only matter to larger values."""
_number_max = 1e300


def bind_arguments(function: Callable[..., Any], *given: Any, **named: Any) -> SimpleNamespace:
    """Return the arguments of a function by their names, with its defaults; TypeError as of a call
    with others."""
    bound = inspect.signature(function).bind(*given, **named)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


def check_whole(name: str, value: Any, least: int = 1, most: int = 1 << 62) -> int:
    """Return a whole number from least to most as int. A bool and a float are refused."""
    bounds = f"from {least} to {most:,}" if most <= _shown_max else f"from {least} on"
    text = ""
    if hasattr(value, "__index__") and not isinstance(value, bool | np.bool_ | np.ndarray):
        number = operator.index(value)  # a check against SupportsIndex would take 10 us
        if least <= number <= most:
            return number
        if number > most:
            bounds = f"from {least} to {most:,}"
        if number.bit_length() > 200:  # Python does not print numbers of any length
            text = f"a number of {number.bit_length():,} bits"
    raise UsageError(f"{name} is {text or repr(value)[:100]}: use a whole number {bounds}")


def check_number(
    name: str,
    value: object,
    least: float = 0.0,
    most: float = _number_max,
    *,
    above: bool = False,
    infinite: bool = False,
) -> float:
    """Return a real number from least to most.

    above:     `least` itself is refused.
    infinite:  infinity is accepted as well.
    """
    # An instance check against an abstract class takes longer than all the rest.
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        number = value if isinstance(value, int | float) else float(value)
        if least <= number <= most and not (above and number == least):
            return number
        if infinite and number == math.inf:
            return math.inf
    if most == _number_max:
        bounds = f"above {least:g}" if above else f"from {least:g} on"
    else:
        bounds = f"above {least:g}, at most {most:g}" if above else f"from {least:g} to {most:g}"
    raise UsageError(f"{name} is {repr(value)[:100]}: use a number {bounds}")


def check_flag(name: str, value: object) -> bool:
    """Return a switch as bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name} is {value!r:.100}: use True or False")
    return bool(value)


def check_kind(name: str, value: object, kind: type[Kind], remedy: str) -> Kind:
    """Return an instance of `kind`; `remedy` names what to give instead of another value."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {value!r:.100}: give {remedy}")
    return value


def check_function(name: str, value: object, remedy: str) -> Any:
    """Return a function, or None."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} is {value!r:.100}: give {remedy}")
    return value


def check_choice(name: str, value: object, choices: Iterable[str], more: str = "") -> Any:
    """Return one of the choices; the error lists them and suggests the nearest.

    more:  the end of the message, such as what else may be given.
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        near = suggest(str(value), known)
        raise UsageError(f"{name} is {value!r:.100}{near}: use one of {', '.join(known)}{more}")
    return value


def check_names(name: str, value: Iterable[str] | None) -> tuple[str, ...]:
    """Return names that are given in a list or tuple; () for None."""
    names = () if value is None else value
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise UsageError(f"{name} is {value!r:.80}: give names of fields, in a list or tuple")
    return tuple(names)


def check_path(name: str, value: object) -> str:
    """Return a path as str. Texts that no file name can be, with a lone surrogate, are refused."""
    if not isinstance(value, str | bytes | os.PathLike):
        raise UsageError(f"{name} is {value!r:.100}: give a path")
    if not value:
        raise UsageError(f"{name} is empty: name a file or a folder")
    try:
        return os.fsdecode(os.fsencode(value))
    except UnicodeEncodeError as error:
        what = f"{name} is {value!r}: character {error.start} is a lone surrogate"
        raise UsageError(f"{what}: give it as bytes") from None


def whole(least: int = 1, most: int = 1 << 62) -> Spec:
    """A whole number from least to most."""
    return {"check": partial(check_whole, least=least, most=most)}


def real(
    least: float = 0.0, most: float = _number_max, *, above: bool = False, infinite: bool = False
) -> Spec:
    """A real number; arguments as in `check_number`."""
    return {"check": partial(check_number, least=least, most=most, above=above, infinite=infinite)}


def rate() -> Spec:
    """A number above 0, or infinity."""
    return real(above=True, infinite=True)


def fraction() -> Spec:
    """A number from 0 to 1."""
    return real(0, 1)


def flag() -> Spec:
    """True or False."""
    return {"check": check_flag}


def choice(choices: Any) -> Spec:
    """One of the values of a Literal of texts."""
    return {"check": partial(check_choice, choices=get_args(choices))}


def file_path() -> Spec:
    """A path of a file or folder."""
    return {"check": check_path}


def instance(of: type[Any], remedy: str) -> Spec:
    """An instance of a class."""
    return {"check": partial(check_kind, kind=of, remedy=remedy)}


def function(remedy: str) -> Spec:
    """A function, or None."""
    return {"check": partial(check_function, remedy=remedy)}


def optional(spec: Spec) -> Spec:
    """None, or what the other check accepts."""
    return {**spec, "optional": _accept}


def _accept(name: str, value: object) -> Any:
    return value


def check_fields(value: Any, prefix: str | None = None) -> None:
    """Check the fields of a dataclass, and store the values that their checks return.

    prefix:  text before the names of fields in messages; None is the name of the class and a dot.
    """
    if prefix is None:
        prefix = f"{type(value).__name__}."
    owner: Any = type(value)
    for name, check, is_optional in _list_checks(owner):
        given = getattr(value, name)
        if given is None and is_optional:
            continue
        try:
            checked = check(prefix + name, given)
        except UsageError as error:
            if not is_optional:
                raise
            raise UsageError(f"{error}, or None") from None
        if checked is not given:
            object.__setattr__(value, name, checked)


@cache
def _list_checks(cls: Any) -> list[tuple[str, Check, bool]]:
    return [
        (item.name, item.metadata["check"], item.default is None or "optional" in item.metadata)
        for item in fields(cls)
        if "check" in item.metadata
    ]


_listed_max = 1_000
"""Entries of a folder that are compared with a path."""


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant: nearly the same letters, whatever their case and `_`."""
    import difflib  # only errors need it

    bare = {known.replace("_", "").lower(): known for known in words}
    near = difflib.get_close_matches(word.replace("_", "").lower(), bare, n=1, cutoff=0.7)
    return bare[near[0]] if near else None


def suggest(word: str, words: Iterable[str]) -> str:
    """The part of a message that names the word that was probably meant, or ""."""
    near = find_nearest(word, words)
    return f" (did you mean {near!r}?)" if near else ""


def suggest_path(path: str) -> str:
    """The part of a message that names the existing path spelled most like a missing one, or ""."""
    import difflib

    folder, name = os.path.split(path)
    while folder and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder, name = os.path.split(folder)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, _listed_max)]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, names, 1, 0.8)
    return f" (did you mean {os.path.join(folder, near[0])!r}?)" if near else ""


def import_function(option: str, text: str) -> Callable[..., Any]:
    """Import the function that an option names as module:function, also from this folder."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{option} is {text!r}: use module:function, such as mytrain.data:decode")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module)
        for attribute in name.split("."):
            function = getattr(function, attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        what = f"{option} is {text!r}, which cannot be had ({error})"
        raise UsageError(f"{what}: name an importable function") from None
    if not callable(function):
        raise UsageError(f"{option} is {text!r}, which is {function!r}: name a function")
    return function  # type: ignore[no-any-return]
