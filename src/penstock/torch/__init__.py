"""Faces of PyTorch: loaders with torch's arguments, and orders on its devices."""

from __future__ import annotations

from . import gpu
from .loader import DataLoader, DeviceLoader

__all__ = ["DataLoader", "DeviceLoader", "gpu"]
