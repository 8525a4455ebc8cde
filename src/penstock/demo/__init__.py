"""The demonstration that `penstock demo` runs: what penstock promises, shown on data made for it.

Its nouns: the *digits* are images that it draws and trains on, a *ledger* the names of the samples
of each batch that a run saw, the *race* one epoch of small records by several readers.

The folder needs numpy alone, and the processes that it starts; it changes nothing outside the
folder that it is given. It must not know the command line.
"""

from __future__ import annotations

from .story import run_demo

__all__ = ["run_demo"]
