"""Options of the commands that open data: where the data is and how it is read."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from ..dataset import Dataset, locate_data, sidecar_paths
from ..dataset import open as open_dataset
from ..engine import is_url, parse_object_url, pin_hub_urls
from ..errors import SidecarError, UsageError
from ..index import Index
from . import console
from .completion import complete_format

Path = Annotated[
    str,
    typer.Argument(help="A folder, a list of files, a file of records, an .npy file, a pattern."),
]
_HEADING = "How the data is read"


def _format_option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_HEADING)


Format = Annotated[
    str | None,
    typer.Option(
        help="A name that `penstock formats` lists; by default as detected.",
        rich_help_panel=_HEADING,
        autocompletion=complete_format,
    ),
]
RecordBytes = Annotated[int | None, _format_option("Size of one record.")]
HeaderBytes = Annotated[int, _format_option("Bytes to skip at the start of each file.")]
Dtype = Annotated[str | None, _format_option("Number type of a record, such as float32.")]
Shape = Annotated[str | None, _format_option("Shape of a record, such as 3,32,32.")]
Extension = Annotated[
    list[str] | None, _format_option("Count only such files of a folder; may be repeated.")
]
Option = Annotated[
    list[str] | None,
    _format_option("Any option of the format, as NAME=VALUE; may be repeated.", "--option", "-o"),
]


FormatOptions = dict[str, Any]
"""Options that were given, as `penstock.open` takes them."""

_PARAMETERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (
        ("format", None, Format),
        ("record_bytes", None, RecordBytes),
        ("header_bytes", 0, HeaderBytes),
        ("dtype", None, Dtype),
        ("shape", None, Shape),
        ("extension", None, Extension),
        ("option", None, Option),
    )
]


def takes_format_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of formats, which it gets collected as its argument `options`."""
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += _PARAMETERS if name == "options" else [parameter]

    def run(**given: Any) -> None:
        options = _collect_options(**{each.name: given.pop(each.name) for each in _PARAMETERS})
        command(**given, options=options)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _collect_options(
    format: str | None,
    record_bytes: int | None,
    header_bytes: int,
    dtype: str | None,
    shape: str | None,
    extension: list[str] | None,
    option: list[str] | None,
) -> FormatOptions:
    """Collect the options that were given."""
    options = {
        "format": format,
        "record_bytes": record_bytes,
        "header_bytes": header_bytes or None,
        "dtype": dtype,
        "shape": _parse_shape(shape),
        "extensions": extension or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    for each in option or ():
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--option is {each!r}: use NAME=VALUE, such as label=class")
        if name in given:
            raise UsageError(f"{name} is given twice: give it once")
        given[name] = _parse_value(value)
    return given


def _parse_value(text: str) -> Any:
    """Parse a value as JSON writes it (3, true, ["a", "b"]); anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.replace("x", ",").split(","))
    except ValueError:
        raise UsageError(f"--shape is {text!r}: use numbers with commas, such as 3,32,32") from None


def open_data(path: str, options: FormatOptions, index: str = "auto") -> Dataset:
    """Open data, and show progress and warnings.

    Records are read with the options with which they were last indexed, if none is given: their
    files do not show them.
    """
    options = options or _recall_options(path)
    with (
        console.show_progress(f"Looking at {hide_credentials(path)}") as progress,
        console.print_warnings(),
    ):
        return open_dataset(path, index=index, progress=progress, **options)


def _recall_options(path: str) -> FormatOptions:
    place, store = locate_data(*pin_hub_urls([path]))
    for sidecar in sidecar_paths(place):
        with suppress(OSError, SidecarError):
            saved = Index.load(sidecar, store.root)
            if saved.format == "records":
                return {"format": saved.format, **saved.options}
    return {}


def hide_credentials(path: str) -> str:
    """The path without the credentials of a URL."""
    if not is_url(path):
        return path
    try:
        return parse_object_url(path).url
    except UsageError:  # said when it is opened
        return "the URL"


def import_function(option: str, text: str) -> Callable[..., Any]:
    """Import the function that an option names as module:function.

    Modules are looked for in the current folder, too, as `python -m` does. UsageError if there
    is none.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{option} is {text!r}: use module:function, such as mytrain.data:decode")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"{option} is {text!r}, which cannot be had ({error}): name a module that can be "
            f"imported from here, and a function in it"
        ) from None
    if not callable(found):
        raise UsageError(f"{option} is {text!r}, which is {found!r}: name a function")
    function: Callable[..., Any] = found
    return function
