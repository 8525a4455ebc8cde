"""Adapters: penstock's loaders in the form that a trainer or framework calls.

Each module is named by the library it serves, and is `penstock.<name>` for users; what `ray_data`,
`ray_source` and `ray_sink` have is in `penstock.ray`. It imports that library when it is used,
never before: the face hands modules out lazily. An adapter translates arguments, batches and
states; order, place and reading are the loader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import composer as composer
    from . import grain as grain
    from . import jax as jax
    from . import keras as keras
    from . import lightning as lightning
    from . import megatron as megatron
    from . import ray as ray
    from . import torchdata as torchdata
    from . import torchtitan as torchtitan
    from . import transformers as transformers
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {},
        folders="composer grain jax keras lightning megatron ray torchdata torchtitan transformers",
    )
