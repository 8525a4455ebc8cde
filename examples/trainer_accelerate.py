"""accelerate, killed in its second epoch: load_state() restores the loader's place as well.

python examples/trainer_accelerate.py run --stop-after 7
python examples/trainer_accelerate.py run --resume
"""

from accelerate import Accelerator
from points import BATCH, EPOCHS, Run, decode

import torch
from penstock.torch import StepLoader

run = Run()
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step_loader = StepLoader(run.dataset, BATCH, shuffle=True, seed=0, decode=decode)
model, optimizer, loader = accelerator.prepare(model, optimizer, step_loader)

# save_state() then saves where the loader stands, and load_state() puts it there.
accelerator.register_for_checkpointing(step_loader)
if run.resume:
    accelerator.load_state(run.folder / "state")

for epoch in range(step_loader.state_dict()["epoch"], EPOCHS):
    loader.set_epoch(epoch)
    for batch in loader:
        run.note(batch["number"])
        optimizer.zero_grad()
        accelerator.backward((model(batch["x"]) - batch["y"]).square().mean())
        optimizer.step()
        accelerator.save_state(run.folder / "state")
run.check()
