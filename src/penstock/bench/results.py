"""Results from files: records of this benchmark, and DLIO's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import MissingError
from . import dlio_results
from .recorded import check_record, read_json


def read(path: str | Path) -> dict[str, Any]:
    """Read the record at a path: a file, or a folder that holds record.json or DLIO's summary.json.

    Raises MissingError if there is none, FormatError if it is something else.
    """
    place = Path(path)
    if place.name == "summary.json":
        return dlio_results.read(place.parent)
    if place.is_dir():
        if not (place / "record.json").is_file() and (place / "summary.json").is_file():
            return dlio_results.read(place)
        if not (place / "record.json").is_file():
            raise MissingError(
                f"{place} holds neither record.json nor summary.json: give the folder that "
                "`penstock bench run` or DLIO wrote its results to"
            )
        place = place / "record.json"
    return dict(check_record(read_json(place), str(place)))
