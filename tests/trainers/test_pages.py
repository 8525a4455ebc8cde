"""The pages of docs/trainers and that of Grain: their code runs under the library of each."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from docsite.blocks import find_blocks, make_program

from tests import ROOT

FOLDER = ROOT / "docs" / "trainers"
MIGRATIONS = [ROOT / "docs" / "how" / "from-grain.md"]
"""Pages with a program of the library's own, which this environment alone has."""
PAGES = [*sorted(FOLDER.glob("*.md")), *MIGRATIONS]

COMMON = """
import numpy as np, torch, penstock
data = dataset = penstock.open("tokens.bin", record_bytes=64)
def decode(sample):
    numbers = np.frombuffer(sample["data"], np.uint16).astype("float32")
    return {"x": numbers[:1], "labels": numbers[1:2]}
loader = penstock.torch.DataLoader(dataset, 32, shuffle=True, seed=0, decode=decode)
documents = penstock.open("documents.bin", dtype="uint16", eos=0)
epochs = 2
"""
LANGUAGE_MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
language_model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, **sizes))
"""
MEETING = """
import os, torch.distributed
torch.distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("meet"), rank=0, world_size=1
)
"""
# Gloo's threads drop their tensors late, even after a group is destroyed: where the interpreter
# has ended by then, torch aborts. A page that got here ended well.
PARTING = """
import sys
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""
NEEDS: dict[str, tuple[str, str]] = {
    "accelerate": (
        "accelerate",
        "from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)",
    ),
    "composer": ("torch", ""),
    "deepspeed": (
        "deepspeed",
        MEETING
        + """
os.environ.update(DS_ACCELERATOR="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # no kernels are compiled
model, folder = torch.nn.Linear(1, 1), "states"
optimizer = {"type": "SGD", "params": {"lr": 1e-6}}
config = {"train_micro_batch_size_per_gpu": 32, "optimizer": optimizer}
""",
    ),
    "from-grain": ("grain", ""),
    "jax": (
        "jax",
        """
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh, state = Mesh(np.array(jax.devices()), ("data",)), 0
def train_step(state, batch):
    return state + int(batch["__valid__"].sum())
""",
    ),
    "keras": (
        "keras",
        """
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse")
def pair(sample):
    numbers = np.frombuffer(sample["data"], np.uint16).astype("float32")
    return numbers[:1], numbers[1:2]
loader = penstock.torch.DataLoader(dataset, 32, shuffle=True, seed=0, decode=pair)
""",
    ),
    "lightning": (
        "pytorch_lightning",
        LANGUAGE_MODEL
        + """
import pytorch_lightning
from pytorch_lightning.callbacks import ModelCheckpoint
class Model(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        return self.layer(batch["x"]).square().mean()
    def validation_step(self, batch, number):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)
model = Model()
trainer, packed_trainer = [pytorch_lightning.Trainer(
    max_epochs=1, logger=False, accelerator="cpu", enable_progress_bar=False,
    callbacks=[ModelCheckpoint(dirpath=folder, save_last=True)],
) for folder in (".", "packed")]
train = loader
val = penstock.torch.DataLoader(dataset, 32, decode=decode)
""",
    ),
    "megatron": ("torch", ""),
    "meshes": (
        "torch",
        MEETING + "from torch.distributed.device_mesh import init_device_mesh\n",
    ),
    "nodes-and-grain": (
        "torchdata",
        "import torchdata, torchdata.nodes\ndef transform(batch):\n    return batch",
    ),
    "ray": ("ray", ""),
    "torchtitan": ("torchtitan", ""),
    "transformers": (
        "transformers",
        LANGUAGE_MODEL
        + """
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}
model = Model()
args = TrainingArguments(
    "out", per_device_train_batch_size=32, max_steps=4, save_steps=2, report_to=[],
    use_cpu=True, learning_rate=1e-9, disable_tqdm=True,
)
""",
    ),
}
"""The library that a page is about, and the names that it takes for granted: the reader's."""
STAND_INS = {"meshes": {"(2, 4, 2)": "(1, 1, 1)"}}
"""What stands for numbers of processes."""


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    """All blocks of a page are one program, which ends without an error."""
    text = page.read_text()
    library, prelude = NEEDS[page.stem]
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert find_blocks(text)
    for name, stand_in in STAND_INS.get(page.stem, {}).items():
        assert name in text
        text = text.replace(name, stand_in)
    np.arange(200 * 32, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    (np.arange(200 * 32) % 50).astype(np.uint16).tofile(tmp_path / "documents.bin")
    program = tmp_path / "page.py"
    name = str(page.relative_to(ROOT))
    everything = page in MIGRATIONS
    lines = make_program(name, text, COMMON + prelude, everything)
    program.write_text(lines + PARTING * (MEETING in prelude))
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
