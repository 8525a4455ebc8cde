"""Read windows of tokens, shuffled, as a training loop does."""

import penstock

tokens = penstock.open("tokens", window=64, as_dtype="int64")
loader = penstock.Loader(tokens, batch_size=4, seed=0, drop_last=True)
batches = 0
for batch in loader:
    inputs, labels = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    assert inputs.shape == labels.shape == (4, 64), inputs.shape
    assert (inputs[:, 1:] == labels[:, :-1]).all()
    batches += 1
print(f"1 epoch: {batches} batches of 4 x 64 tokens")
