"""Lightning, killed in its second epoch: its checkpoint knows the next batch.

python examples/trainer_lightning.py run --stop-after 7
python examples/trainer_lightning.py run --resume
"""

import pytorch_lightning as lightning
from points import BATCH, EPOCHS, Run, decode
from pytorch_lightning.callbacks import ModelCheckpoint

import penstock
import torch

run = Run()


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        run.note(batch["number"])
        return (self.line(batch["x"]) - batch["y"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    # What comes after the last checkpoint is done again: here nothing.
    callbacks=[ModelCheckpoint(run.folder, save_last=True, every_n_train_steps=1)],
)
loader = penstock.torch.DataLoader(run.dataset, BATCH, shuffle=True, seed=0, decode=decode)
last = run.folder / "last.ckpt" if run.resume else None
trainer.fit(Line(), penstock.lightning.Data(loader), ckpt_path=last)
run.check()
