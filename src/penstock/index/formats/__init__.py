"""Formats: the containers that penstock reads, one module each. A format makes an Index."""

from __future__ import annotations

from .place import Location
from .registry import FORMATS, Format, choose_format

__all__ = ["FORMATS", "Format", "Location", "choose_format"]
