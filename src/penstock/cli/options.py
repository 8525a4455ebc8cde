"""Options that several commands share, and the data and functions that they name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SidecarError, UsageError
from . import console
from .app import complete_names
from .quantities import parse_amount

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset


def option(help: str, *names: str, **settings: Any) -> Any:
    """Make an option; typer derives its name from the parameter if none is given."""
    return typer.Option(*names, help=help, **settings)


def setting(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """Make an option of a parameter whose default this is; `...` if it has to be given."""
    return typer.Option(default, *names, help=help, **settings)


AsJson = Annotated[bool, option("Print one JSON object.", "--json")]

Socket = Annotated[
    str | None, option("Socket of the broker.", metavar="PATH", show_default="the usual one")
]
DataPath = Annotated[
    str,
    typer.Argument(
        help="A folder, a file, a pattern or a list of them: images, shards (tar, TFRecord, MDS, "
        "...), Parquet, HDF5, Zarr, JSON lines, records, arrays; also at s3://, gs://, az://, "
        "https:// and hf://."
    ),
]


# -- how data is read ------------------------------------------------------------------------------


def _complete_format(incomplete: str) -> list[str]:
    from ..index.formats.registry import FORMATS

    return complete_names(FORMATS, incomplete)


FormatOptions = dict[str, Any]
"""Options of formats that were given, as `penstock.open` takes them."""

_FORMAT_OPTIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "format": (
        str | None,
        "A name that `penstock formats` lists.",
        {"autocompletion": _complete_format, "show_default": "as detected"},
    ),
    "record_bytes": (str | None, "Size of one record.", {"metavar": "SIZE"}),
    "header_bytes": (str | None, "What to skip at the start of each file.", {"metavar": "SIZE"}),
    "dtype": (str | None, "Number type of a record, such as float32.", {"metavar": "TYPE"}),
    "shape": (str | None, "Shape of a record, such as 3,32,32.", {"metavar": "SHAPE"}),
    "extension": (
        list[str] | None,
        "Count only such files of a folder; may be repeated.",
        {"metavar": "ENDING"},
    ),
    "option": (
        list[str] | None,
        "Any option of the format; may be repeated.",
        {"metavar": "NAME=VALUE"},
    ),
}


def _make_parameter(name: str) -> inspect.Parameter:
    kind, help, settings = _FORMAT_OPTIONS[name]
    annotation = option(help, rich_help_panel="How the data is read", **settings)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, annotation]
    )


_PARAMETERS = [_make_parameter(name) for name in _FORMAT_OPTIONS]


def takes_format_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of formats; it gets them as its argument `options`."""
    return insert_options(command, "options", _PARAMETERS, _collect_options)


def insert_options(
    command: Callable[..., None],
    name: str,
    parameters: Sequence[inspect.Parameter],
    collect: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Put options in the place of an argument; the command gets as it what is collected of them."""
    signature = inspect.signature(command, eval_str=True)
    placed: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        placed += parameters if parameter.name == name else [parameter]

    def run(**values: Any) -> None:
        given = {parameter.name: values.pop(parameter.name) for parameter in parameters}
        command(**values, **{name: collect(given)})

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in placed}
    run.__signature__ = signature.replace(parameters=placed)  # type: ignore[attr-defined]
    return run


def _collect_options(given: dict[str, Any]) -> FormatOptions:
    """Rename and parse the options that were given."""
    given["extensions"], pairs = given.pop("extension"), given.pop("option")
    options = {name: value for name, value in given.items() if value not in (None, [])}
    for name in {"record_bytes", "header_bytes"} & options.keys():
        option = f"--{name.replace('_', '-')}"
        options[name] = int(parse_amount(option, options[name], "3073 or 4KiB"))
    if "shape" in options:
        options["shape"] = _parse_shape(options["shape"])
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--option is {pair!r}: use NAME=VALUE, such as label=class")
        if name in options:
            raise UsageError(f"{name} is given twice: give it once")
        options[name] = value
        with suppress(ValueError):  # 3, true and ["a", "b"] are JSON, anything else is text
            options[name] = json.loads(value)
    return options


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.replace("x", ",").split(","))
    except ValueError:
        raise UsageError(f"--shape is {text!r}: use numbers with commas, such as 3,32,32") from None


def open_data(path: str, options: FormatOptions, index: str = "auto") -> Dataset:
    """Open data, and show progress and warnings.

    Records without options are read with the options of their saved index: their files do not
    show them.
    """
    from ..dataset.dataset import open as open_dataset

    options = options or _recall_options(path)
    with console.show_progress(f"Looking at {hide_credentials(path)}") as progress:
        return open_dataset(path, index=index, progress=progress, **options)


def _recall_options(path: str) -> FormatOptions:
    from ..dataset.sources import locate_data
    from ..engine.hub import pin_hub_urls
    from ..index.saved_index import list_index_paths
    from ..index.table import Index

    place, store = locate_data(*pin_hub_urls([path]))
    for sidecar in list_index_paths(place):
        with suppress(OSError, SidecarError):
            saved = Index.load(sidecar, store.root)
            if saved.format == "records":
                return {"format": saved.format, **saved.options}
    return {}


def hide_credentials(path: str) -> str:
    """Return the path without the credentials of a URL."""
    from ..engine.object_store import parse_object_url
    from ..engine.open import is_url

    if not is_url(path):
        return path
    try:
        return parse_object_url(path).url
    except UsageError:  # raised again when it is opened
        return "the URL"


# -- functions of the user -------------------------------------------------------------------------
