"""Every error of the public names and faces, as a user reads it: `error_messages.txt` has them.

A new error gets a row there, reviewed as whoever made the mistake would read it: what happened,
where, the value, and what to do. {d} is the folder of the files that `make_scene` makes; "..." are
words of a library. `python -m tests.test_error_messages` writes changed texts into the table.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock_bench as bench
import penstock_sim as sim
from penstock import checkpoint, convert, doctor, errors, order, sharing
from tests import warm

TABLE = Path(__file__).with_name("error_messages.txt")
"""Rows of two lines, a call over the names of `make_scene` and its error, and headings. The calls
below the last heading, `# penstock.torch`, run in a process with torch."""


def read_rows(text: str) -> list[tuple[str, str]]:
    """Read the rows: calls, and their errors as "Class: first line of the message"."""
    lines = [line for line in text.splitlines() if line and not line.startswith("# ")]
    calls = [line.removeprefix(">>> ") for line in lines[::2]]
    return list(zip(calls, lines[1::2], strict=True))


ERRORS, TORCH_ERRORS = map(read_rows, TABLE.read_text().split("# penstock.torch"))

TORCH_PROGRAM = """
import sys
import penstock
from penstock.torch import DataLoader, DeviceLoader, gpu
data = penstock.open("x.npy", index="memory")
for call in sys.argv[1:]:
    try:
        eval(call)
    except Exception as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    else:
        print("no error")
"""


ELSEWHERE = {
    "PenstockError": "never raised itself",
    "DataError": "never raised itself",
    "ForkError": "tests/loader/test_loader.py, in a child",
    "StalledError": "tests/checkpoint, behind storage that hangs",
    "WorkerError": "tests/torch/test_loader.py, with worker processes",
}
"""The classes without a row, and where they are tested."""


def make_scene(d: Path) -> dict[str, Any]:
    """Build the files and values that the calls use."""
    np.save(d / "x.npy", np.arange(240, dtype=np.uint8).reshape(30, 8))
    np.save(d / "y.npy", np.zeros((30, 9), np.float32))
    np.savez(d / "x.npz", a=np.zeros((2, 3)))
    np.save(d / "object.npy", np.array([{}], object), allow_pickle=True)
    whole = (d / "x.npy").read_bytes()
    contents: dict[str, str | bytes] = {
        "raw": bytes(range(240)),
        "cut.npy": whole[:-1],
        "a.jpg": b"\xff\xd8\xff",
        "b.jpg": b"\xff\xd8\xff",
        "x.pkl": b"\x80\x04]",
        "x.zip": b"PK\x05\x06",
        "x.tar.gz": gzip.compress(b""),
        "x.jsonl": '{"text": "a"}\n',
        "cut.jsonl": '{"text": "a"}\n{"te',
        "document.json": '[\n  {"text": "a"}\n]\n',
        "x.log.gz": gzip.compress(b"a"),
        "x.jsonl.gz": gzip.compress(bytes(17 << 20)),
        "header.csv": "path,label\na.jpg,1\n",
        "table.csv": "a,b\n1,2\n",
        "missing.txt": "none.jpg\n",
        "cut.yaml": "a: [1",
        "list.yaml": "- 1\n",
        "odd.yaml": "nonsense: 1\n",
        "cut.json": "{",
        "odd.json": '{"a": 1}',
        "short.key": "short",
        "open.key": "x" * 40,
        "blank.txt": "\n# nothing\n",
        "unlabelled.txt": "a.jpg 1\nb.jpg\n",
        "tree/cat/1.jpg": "1",
        "tree/dog/2.jpg": "22",
        "coco/annotations/instances.json": "{}",
        "coco/train2017/1.jpg": "1",
        "masks/images/1.png": "1",
        "masks/masks/1.png": "1",
        "pairs/1.wav": "1",
        "pairs/1.txt": "1",
        "changed": bytes(8),
        "vanished": bytes(8),
    }
    for name, content in contents.items():
        (d / name).parent.mkdir(parents=True, exist_ok=True)
        (d / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (d / "open.key").chmod(0o644)
    (d / "short.key").chmod(0o600)
    (d / "empty").mkdir()
    (d / "gone").symlink_to("nowhere")
    (d / "loop").symlink_to("loop")
    os.mkfifo(d / "pipe")
    with (d / "huge").open("wb") as file:
        file.truncate(1 << 43)

    def opened(name: str, **options: Any) -> penstock.Dataset:
        return penstock.open(d / name, index="memory", **options)

    data = opened("x.npy")
    data.index.save(d / "x.penstock")
    (d / "cut.penstock").write_bytes((d / "x.penstock").read_bytes()[:-9])
    scene: dict[str, Any] = {
        "d": d,
        "np": np,
        "penstock": penstock,
        "first": first,
        "bench": bench,
        "checkpoint": checkpoint,
        "convert": convert,
        "doctor": doctor,
        "order": order,
        "sharing": sharing,
        "sim": sim,
        "saves": checkpoint.Checkpoints(d / "saves"),
        "data": data,
        "unequal": lambda sample: np.zeros(sample["__id__"]),
        "cut_index": d / "cut.penstock",
        "state": penstock.Loader(data).state_dict(),
        "other": opened("y.npy"),
        "tree": opened("tree"),
        "changed": opened("changed", record_bytes=8),
        "vanished": opened("vanished", record_bytes=8),
        "huge": opened("huge", record_bytes=1 << 43),
    }
    (d / "changed").write_bytes(bytes(16))
    (d / "vanished").unlink()
    return scene


def first(loader: penstock.Loader) -> Any:
    """Return the first batch of a loader that is closed afterwards."""
    try:
        return next(iter(loader))
    finally:
        loader.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_scene(tmp_path_factory.mktemp("errors"))


def matches(wanted: str, error: str) -> bool:
    return re.fullmatch(re.escape(wanted).replace(re.escape("..."), ".*"), error) is not None


def find_error(call: str, scene: dict[str, Any]) -> str:
    """Make a call, and return its error as the table has it."""
    try:
        eval(call, dict(scene))
    except Exception as error:
        first_line = str(error).splitlines()[0].replace(str(scene["d"]), "{d}")
        return f"{type(error).__name__}: {first_line}"
    return "no error"


def find_torch_errors(scene: dict[str, Any]) -> list[str]:
    """Make all calls below the heading of torch in a process with torch."""
    command = [sys.executable, "-c", TORCH_PROGRAM, *(call for call, _ in TORCH_ERRORS)]
    done = warm.run(command, cwd=scene["d"], capture_output=True, text=True, timeout=240)
    errors: list[str] = done.stdout.splitlines()
    assert len(errors) == len(TORCH_ERRORS), done.stdout + done.stderr
    return errors


@pytest.mark.parametrize(("call", "wanted"), ERRORS, ids=[call for call, _ in ERRORS])
def test_error(call: str, wanted: str, scene: dict[str, Any], monkeypatch: Any) -> None:
    """The call raises exactly this class, with this first line, in one sentence for a terminal."""
    monkeypatch.chdir(scene["d"])
    error = find_error(call, scene)
    assert matches(wanted, error), error


def test_errors_of_torch(scene: dict[str, Any]) -> None:
    """Likewise for `penstock.torch`, some of whose errors are of torch's own classes."""
    for (_, wanted), error in zip(TORCH_ERRORS, find_torch_errors(scene), strict=True):
        assert matches(wanted, error), error


def test_every_class_has_a_row() -> None:
    """Each class of penstock's errors stands in the table, or ELSEWHERE says where it is tested."""
    rows = {wanted.partition(":")[0] for _, wanted in ERRORS} - {"IndexError"}
    assert rows | ELSEWHERE.keys() == set(errors.__all__)
    assert not rows & ELSEWHERE.keys()


def test_each_error_says_what_to_do() -> None:
    """Behind what happened stands what to do, or what would be right; no full stop ends it."""
    for _, wanted in ERRORS:
        kind, _, line = wanted.partition(": ")
        assert kind == "IndexError" or re.search(r"[:;] \S", line.replace("{d}", "")), line
        assert not line.removesuffix("...").endswith("."), line


def write_table() -> None:
    """Put what the calls raise now into the table, where it differs, for review."""
    text = TABLE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        scene = make_scene(Path(folder).resolve())
        os.chdir(folder)
        raised = [find_error(call, scene) for call, _ in ERRORS] + find_torch_errors(scene)
    for (call, wanted), error in zip(ERRORS + TORCH_ERRORS, raised, strict=True):
        if not matches(wanted, error):
            print(f"{call}\n- {wanted}\n+ {error}")
            text = text.replace(f">>> {call}\n{wanted}\n", f">>> {call}\n{error}\n")
    TABLE.write_text(text)


if __name__ == "__main__":
    write_table()
