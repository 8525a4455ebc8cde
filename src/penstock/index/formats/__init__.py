"""Formats: the containers that penstock reads, one module each. A format makes an Index."""

from __future__ import annotations

from .place import Place
from .registry import FORMATS, Format, choose

__all__ = ["FORMATS", "Format", "Place", "choose"]
