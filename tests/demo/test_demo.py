"""`penstock demo`: its story holds, and a promise that is broken is seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.demo import digits, run_demo, story
from tests.command import run


@pytest.mark.long
def test_every_promise_holds_and_nothing_is_left(tmp_path: Path) -> None:
    """The whole story, with real processes, one of which is killed."""
    said: list[str] = []
    assert run_demo(tmp_path, said.append), "\n".join(said)
    text = "\n".join(said)
    assert "all 2,000 samples exactly once" in text
    first, second = (line.split()[-1] for line in said if "SHA-256" in line)
    assert first == second
    assert "penstock" in text.split("4. Small records")[1]
    ledgers = [
        [json.loads(line) for line in (tmp_path / f"resumed-{rank}.jsonl").read_text().splitlines()]
        for rank in range(story.RANKS)
    ]
    assert len(ledgers[0]) == len(ledgers[1]) > 0
    for ours, theirs in zip(*ledgers, strict=True):
        assert not set(ours) & set(theirs)


def test_images_are_the_same_in_every_run_and_can_be_told_apart(tmp_path: Path) -> None:
    """The drawing is seeded, and an image decodes to the pixels that were drawn."""
    random = np.random.default_rng(5)
    pixels = digits._draw_digit(7, random)
    assert np.array_equal(pixels, digits._draw_digit(7, np.random.default_rng(5)))
    data = digits._HEADER + pixels.tobytes()
    sample = digits.decode_digit({"data": data, "label": 7, "__key__": "x"})
    assert np.array_equal(np.rint(sample["image"] * 255).reshape(pixels.shape), pixels)
    assert (sample["label"], sample["key"]) == (7, "x")


def test_a_classifier_learns_what_it_is_shown() -> None:
    """Forty steps on 300 images leave few of them wrong, from one in ten right."""
    random = np.random.default_rng(1)
    labels = np.arange(300) % digits.CLASSES
    drawn = [digits._draw_digit(int(label), random).ravel() for label in labels]
    images = np.stack(drawn).astype(np.float32) / 255
    model = digits.Classifier()
    assert (model.classify(images) == labels).mean() < 0.5
    for _ in range(80):
        model.learn(images, labels)
    assert (model.classify(images) == labels).mean() > 0.9


def test_batches_of_ranks_join_to_global_batches() -> None:
    """Rank r has every n-th sample; a last batch may be uneven."""
    whole = [["a", "b", "c", "d"], ["e", "f", "g"]]
    ledgers = [[batch[rank::2] for batch in whole] for rank in range(2)]
    assert story._join_ranks(ledgers) == whole


def test_a_race_over_own_files_reads_each_and_writes_nothing(tmp_path: Path) -> None:
    """Files of different sizes, by every contender; other formats are refused."""
    for number in range(300):
        (tmp_path / f"{number}.txt").write_bytes(bytes(number + 1))
    lines = run("demo", tmp_path).stdout.splitlines()
    assert lines[1] == f"300 files of {tmp_path}"
    assert sum("samples/s" in line for line in lines) >= 2
    assert len(list(tmp_path.iterdir())) == 300
    np.save(tmp_path / "x.npy", np.zeros(9))
    said = run("demo", tmp_path / "x.npy", code=1).stderr
    assert said.endswith("has npy: give a folder of images or texts\n")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """One sentence, exit code 1, and nothing is written."""
    (tmp_path / "mine").touch()
    said = run("demo", "--output", tmp_path, code=1)
    assert (
        said.stderr == f"penstock: --output is {tmp_path}, which is not empty: name a new folder\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
