"""transformers' Trainer, killed in its second epoch: the next run goes on with the next batch.

python examples/trainer_transformers.py run --stop-after 7
python examples/trainer_transformers.py run --resume
"""

from points import BATCH, EPOCHS, Run, decode
from transformers import PrinterCallback, Trainer, TrainingArguments

import penstock
import torch

run = Run()


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x, y, number):
        run.note(number)
        return {"loss": (self.line(x) - y).square().mean()}


settings = TrainingArguments(
    str(run.folder / "checkpoints"),
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=BATCH,  # the loader's
    save_strategy="steps",
    save_steps=1,  # what comes after the last checkpoint is done again: here nothing
    save_total_limit=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(Line(), settings)
trainer.remove_callback(PrinterCallback)

# The trainer counts steps, and asks the loader for the rest of the epoch: that is a seek.
loader = penstock.torch.StepLoader(run.dataset, BATCH, shuffle=True, seed=0, decode=decode)
penstock.transformers.attach(trainer, loader)
trainer.train(resume_from_checkpoint=run.resume)
run.check()
