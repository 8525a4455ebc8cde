"""Tests: the folders mirror those of the package; files here serve several of them."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
