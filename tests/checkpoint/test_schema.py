"""Documents of a checkpoint with right checksums and wrong content: each is a named error."""

from __future__ import annotations

import copy
import json
import struct
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.manifest import seal, unseal
from penstock.checkpoint.repository import Folder
from penstock.checkpoint.tiers import HeldSave
from penstock.engine import crc32c
from penstock.errors import FormatError
from tests.slices import thinned

VALUES = [None, True, -1, 1.5, 1 << 70, 10**12, "x", "../x", "1", [], {}, [[]]]
DROPPED = object()


def list_paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the paths of all values in a document."""
    yield path
    if isinstance(document, dict | list):
        children = document.items() if isinstance(document, dict) else enumerate(document)
        for key, child in children:
            yield from list_paths(child, (*path, key))


def mutate(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Copy a document with another value at a path, or without it."""
    if not path:
        return None if value is DROPPED else value
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if value is DROPPED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


def list_mutations(document: Any) -> Iterator[Any]:
    """List the documents that differ in one value, which is dropped or another."""
    for path in list_paths(document):
        for value in (DROPPED, *VALUES):
            yield mutate(document, path, value)


def make_state() -> dict[str, Any]:
    """Make a state of each kind of node, and of array that shares its memory."""
    whole = np.arange(12, dtype=np.int16).reshape(3, 4)
    return {
        "whole": whole,
        "views": [whole.T, whole[1:, ::2]],
        "bytes": b"abc",
        "empty": np.zeros((0, 3)),
        "numbers": (1, float("nan"), np.float32(2)),
        "keys": {1: "a", (2, None): OrderedDict(b=True)},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make checkpoints of steps 5 and 6."""
    with Checkpoints(tmp_path, rank=0, world_size=1) as checkpoints:
        for step in (5, 6):
            checkpoints.save(step, make_state(), {"at": step}, per_rank={"seed": np.arange(9)})
    return tmp_path


def explain(read: Callable[[], Any]) -> str | None:
    """Return the text of the FormatError that reading raises; None if there is none."""
    try:
        read()
    except FormatError as error:
        return str(error)
    return None


def check_all(folder: Path, write: Callable[[Any], None], document: Any) -> float:
    """Load the checkpoint with each mutated document: it loads, or there is a FormatError that
    names a file, and then the checkpoint before loads if that is asked for. Returns the part of the
    documents that are refused."""
    refused = number = 0
    for number, mutated in enumerate(thinned(list_mutations(document))):
        write(mutated)
        if (said := explain(lambda: load(folder))) is not None:
            refused += 1
            assert str(folder) in said, mutated
            assert "The checkpoint before it is of step 5" in said
            if number % 8 == 0:
                with pytest.warns(RuntimeWarning, match="loading step 5"):
                    assert load(folder, fall_back=True).step == 5
    return refused / (number + 1)


@pytest.mark.wide
def test_index(folder: Path) -> None:
    path = Path(Folder(folder).entry().path, "index")
    document = unseal("checkpoint", path.read_bytes(), "")
    refused = check_all(
        folder, lambda mutated: path.write_bytes(seal("checkpoint", mutated)), document
    )
    assert refused > 0.5


@pytest.mark.parametrize("shape", [{}, "", {"12": 1}])
def test_a_shape_is_a_list(folder: Path, shape: Any) -> None:
    """An empty container of another kind does not make an array of one number."""
    path = Path(Folder(folder).entry().path, "index")
    document = unseal("checkpoint", path.read_bytes(), "")
    places = [place for place in list_paths(document) if place[-2:] == ("array", "shape")]
    assert places
    for place in places:
        path.write_bytes(seal("checkpoint", mutate(document, place, shape)))
        assert "no list" in (explain(lambda: load(folder)) or "")


@pytest.mark.wide
def test_index_of_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(12, dtype=torch.int16).reshape(3, 4)
    state = {"whole": whole, "part": whole[1:, ::2], "none": whole[:0]}
    with Checkpoints(tmp_path) as checkpoints:
        for step in (5, 6):
            checkpoints.save(step, state)
    path = Path(Folder(tmp_path).entry().path, "index")
    document = unseal("checkpoint", path.read_bytes(), "")
    assert (
        check_all(tmp_path, lambda new: path.write_bytes(seal("checkpoint", new)), document) > 0.5
    )


@pytest.mark.wide
def test_manifest_of_a_shard(folder: Path) -> None:
    """So does the index, which has the checksum of the manifest."""
    place = Path(Folder(folder).entry().path)
    index = unseal("checkpoint", (place / "index").read_bytes(), "")
    shard = (place / "rank-0.shard").read_bytes()
    begin = struct.unpack("<Q", shard[-8:])[0]

    def write(mutated: Any) -> None:
        manifest = seal("shard", mutated)
        (place / "rank-0.shard").write_bytes(shard[:begin] + manifest + shard[-16:])
        size = begin + len(manifest) + 16
        index["shards"] = [["rank-0.shard", size, crc32c(manifest)]]
        (place / "index").write_bytes(seal("checkpoint", index))

    assert check_all(folder, write, unseal("shard", shard[begin:-16], "")) > 0.5


@pytest.mark.wide
def test_state_of_a_rank(folder: Path) -> None:
    """The description of what is a rank's own lies in a piece of its shard."""
    place = Path(Folder(folder).entry().path)
    index = unseal("checkpoint", (place / "index").read_bytes(), "")
    shard = (place / "rank-0.shard").read_bytes()
    begin = struct.unpack("<Q", shard[-8:])[0]
    *pieces, tree = unseal("shard", shard[begin:-16], "")
    assert tree[1] == "per-rank tree"
    document = json.loads(shard[tree[4] : tree[4] + tree[5]])

    def write(mutated: Any) -> None:
        body = json.dumps(mutated).encode()
        padded = body + bytes(-len(body) % 64)
        row = [*tree[:2], [len(body)], tree[3], tree[4], len(body), crc32c(padded)]
        manifest = seal("shard", [*pieces, row])
        at = tree[4] + len(padded)
        data = shard[: tree[4]] + padded + manifest + shard[-16:-8] + struct.pack("<Q", at)
        (place / "rank-0.shard").write_bytes(data)
        index["shards"] = [["rank-0.shard", len(data), crc32c(manifest)]]
        (place / "index").write_bytes(seal("checkpoint", index))

    assert check_all(folder, write, document) > 0.5


def test_index_of_a_held_save(folder: Path) -> None:
    """A held save has its index, and the attempt before it or None, or there is a FormatError."""
    place = Folder(folder)
    document = HeldSave(None, place.read_index(place.entry())).encode()
    assert explain(lambda: HeldSave.decode(document, "here")) is None
    for path in ((0,), (1,), ()):
        for value in (DROPPED, *VALUES):
            held = mutate(document, path, value)
            said = explain(lambda held=held: HeldSave.decode(held, "here"))
            is_right = path == (0,) and type(value) in (type(None), str)
            assert (said is None) == is_right, held


def test_documents_that_are_not_json(folder: Path) -> None:
    path = Path(Folder(folder).entry().path, "index")
    deep = b"[" * 100_000 + b"]" * 100_000
    for body in (b"", b"{", b"\xff", b"1" * 5000, deep):
        head = f"penstock checkpoint 1 {len(body)} {crc32c(body):08x}\n".encode()
        path.write_bytes(head + body)
        with pytest.raises(FormatError, match=r"index is of another version .*is not JSON"):
            load(folder)


@pytest.mark.wide
def test_index_of_torch(tmp_path: Path) -> None:
    """States of torch.distributed.checkpoint likewise."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    from penstock.checkpoint.dcp import Reader, Storage

    warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
    state = {"a": torch.arange(20), "b": torch.ones(3, 2), "n": 7}
    with Storage(tmp_path) as storage:
        dcp.save(state, storage_writer=storage.writer(5, loader={"at": np.arange(3)}))
    path = Path(Folder(tmp_path).entry().path, "index")
    document = unseal("checkpoint", path.read_bytes(), "")

    def read() -> None:
        reader = Reader(tmp_path)
        reader.set_up_storage_reader(reader.read_metadata(), True)

    refused = 0
    for mutated in thinned(list_mutations(document)):
        path.write_bytes(seal("checkpoint", mutated))
        if (said := explain(read)) is not None:
            refused += 1
            assert str(tmp_path) in said, mutated
    assert refused
