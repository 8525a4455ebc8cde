"""A loop in JAX, killed in its second epoch: the loader's state lies beside the parameters.

python examples/trainer_jax.py run --stop-after 7
python examples/trainer_jax.py run --resume
"""

import pickle

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from points import BATCH, EPOCHS, Run, decode

import penstock

run = Run()
# The loader gives global arrays of this sharding: here over all devices of one process.
mesh = Mesh(jax.devices(), ("data",))
loader = penstock.jax.Loader(
    run.dataset, BATCH, sharding=NamedSharding(mesh, PartitionSpec("data")), seed=0, decode=decode
)


@jax.jit
def train_step(parameters, batch):
    def loss(parameters):
        return jnp.square(batch["x"] @ parameters["w"] + parameters["b"] - batch["y"]).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters))


parameters = {"w": jnp.zeros((1, 1)), "b": jnp.zeros(1)}
if run.resume:
    parameters, state = pickle.loads((run.folder / "saved").read_bytes())
    loader.load_state_dict(state)  # equal on all processes, and good for another number of them

while loader.state_dict()["epoch"] < EPOCHS:
    for batch in loader:
        run.note(batch["number"])
        parameters = train_step(parameters, batch)
        saved = jax.device_get(parameters), loader.state_dict()
        (run.folder / "saved").write_bytes(pickle.dumps(saved))
run.check()
