"""torchvision beside any torch: the operators that its compiled half would bring are only declared.

torchvision's builds of PyPI ask for a CUDA build of torch, and its import fails beside another one
at the first missing operator. Transforms and data sets need none of them. `make bench-images` puts
it in a folder of its own, because what finds it in the environment takes it for whole.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "build" / "torchvision"
_kept: list[Any] = []  # declarations live as long as their library
_attempts = 60


def load_torchvision() -> Any:
    """Return the module torchvision with `transforms.v2` and `datasets`; ImportError without it."""
    if FOLDER.exists() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    for _ in range(_attempts):
        try:
            importlib.import_module("torchvision.transforms.v2")
            importlib.import_module("torchvision.datasets")
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise ImportError(f"torchvision does not load: {error}") from error
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing[1]}(Tensor x) -> Tensor")
            _kept.append(library)
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise ImportError("torchvision does not load")
