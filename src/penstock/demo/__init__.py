"""The demonstration of `penstock demo`: what penstock promises, shown on data made for it.

*Digits* are images that it draws and trains on; a *ledger* is the names of the samples in each
batch of a run; the *race* is one epoch of small samples by several readers. It needs numpy alone
and writes only to the folder that it is given.
"""

from __future__ import annotations

from .story import race_own_files, run_demo

__all__ = ["race_own_files", "run_demo"]
