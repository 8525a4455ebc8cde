"""Adapters: penstock's loaders in the form that a trainer or framework calls.

Each module is named by the library it serves, and is `penstock.<name>` for users. It imports that
library when it is used, never before: the face hands modules out lazily. An adapter translates
arguments, batches and states; order, place and reading are the loader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import jax as jax
    from . import lightning as lightning
    from . import torchtitan as torchtitan
    from . import transformers as transformers
else:
    __all__, __getattr__ = hand_out(__name__, {}, folders="jax lightning torchtitan transformers")
