"""PyTorch's side of penstock: loaders with torch's arguments, and orders on its devices.

`DataLoader` takes the arguments of torch.utils.data.DataLoader; `DeviceLoader` keeps a dataset in
the memory of a device and gathers its batches there; `StepLoader` is for trainers that take a
DataLoader of torch's own class apart; `gpu` shuffles rows of device memory as
`Order` says, bit for bit. Batches have tensors where the loader folder has arrays; `Ragged` is
`penstock.Ragged`.

The folder translates arguments, batches and samplers, and leaves everything else to the loader
folder: it knows nothing of engines, caches or brokers beyond what it passes on. The loader folder
itself does not import torch.
"""

from __future__ import annotations

from ..errors import say_install

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _missing:
    if _missing.name != "torch":  # it is installed, and lacks something itself
        raise
    raise ModuleNotFoundError(
        f"penstock.torch needs PyTorch: {say_install('torch', 'torch')}", name="torch"
    ) from None

from . import gpu
from .device_copies import fill_batch
from .device_loader import DeviceLoader
from .loader import DataLoader
from .step_loader import StepLoader

__all__ = ["DataLoader", "DeviceLoader", "StepLoader", "fill_batch", "gpu"]
