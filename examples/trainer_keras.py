"""Keras 3, killed in its second epoch, which the next run begins again: Keras resumes by epoch.

python examples/trainer_keras.py run --stop-after 7
python examples/trainer_keras.py run --resume
"""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
from points import BATCH, EPOCHS, Run, decode

import penstock

run = Run()
state_file, weights_file = run.folder / "state.json", run.folder / "model.weights.h5"


def pair(sample):
    point = decode(sample)
    return point, point["y"]  # Keras trains on (x, y)


class Line(keras.Model):
    def __init__(self):
        super().__init__()
        self.line = keras.layers.Dense(1)
        self.compile(optimizer="sgd", loss="mse")
        self({"x": keras.ops.zeros((1, 1))})  # built, so that weights can be loaded

    def call(self, inputs):
        return self.line(inputs["x"])

    def train_step(self, data):
        run.note(data[0]["number"].cpu())
        return super().train_step(data)


class Save(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights(weights_file)
        state_file.write_text(json.dumps(loader.state_dict()))


loader = penstock.torch.DataLoader(run.dataset, BATCH, shuffle=True, seed=0, decode=pair)
model, begun = Line(), 0
if run.resume:
    model.load_weights(weights_file)
    state = json.loads(state_file.read_text())
    loader.load_state_dict(state)
    begun = state["epoch"]
    run.forget(begun * len(loader))
    print(f"begins epoch {begun} again")
data = penstock.keras.Data(loader)
model.fit(data, epochs=EPOCHS, initial_epoch=begun, callbacks=[Save()], verbose=0)
run.check()
