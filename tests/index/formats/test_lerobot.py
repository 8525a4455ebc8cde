"""LeRobot data sets: a sample is a frame of an episode, with those around it, and no other's."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import FormatError, MissingError, PenstockError, UsageError
from penstock.testing import FormatSuite, Written
from tests.index.formats.films import read_film
from tests.index.formats.robots import TEXTS, Robots, write_robots
from tests.slices import first

TOP, WRIST = "observation.images.top", "observation.images.wrist"
VERSIONS = ("v2.0", "v3.0")


class TestLeRobot(FormatSuite):
    """Frames with the one before, in films of several episodes."""

    version: ClassVar[str] = "v3.0"

    def write(self, folder: Path, counts: Sequence[int], random: np.random.Generator) -> Written:
        """An episode a count; a file for two."""
        path, files = folder / "set", [number // 2 for number in range(len(counts))]
        robots = write_robots(path, counts, self.version, (TOP,), files=files, size=(16, 16))
        names = "observation.state", "frame_index"
        fields = {name: [np.array(one) for one in robots.columns[name]] for name in names}
        fields |= {TOP: [], f"{TOP}_is_pad": []}
        for row in range(sum(counts)):
            rows, outside = robots.find_rows(row, (-0.1, 0.0))
            fields[TOP].append(robots.frames[TOP][rows])
            fields[f"{TOP}_is_pad"].append(np.array(outside))
        options = {"delta_timestamps": {TOP: [-0.1, 0]}, "fields": [TOP, *names]}
        return Written(path, fields, options)


@pytest.mark.long
class TestLeRobot2(TestLeRobot):
    """A film and a file of rows an episode."""

    version: ClassVar[str] = "v2.1"


def check_samples(
    data: penstock.Dataset, robots: Robots, deltas: Mapping[str, Sequence[float]]
) -> None:
    """Check all that all samples have."""
    for row, sample in enumerate(data):
        for name, column in (*robots.columns.items(), *robots.frames.items()):
            expected = column[row]
            if name in deltas:
                rows, outside = robots.find_rows(row, deltas[name])
                expected = column[rows]
                if name in robots.frames and len(rows) == 1:
                    expected = expected[0]  # as LeRobot has it
                assert sample[f"{name}_is_pad"].tolist() == outside
            assert sample[name].dtype == column.dtype
            assert np.array_equal(sample[name], expected), (row, name)
        if "task_index" in robots.columns:
            assert sample["task"] == TEXTS[robots.columns["task_index"][row]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", first(1, ["libx264", "libsvtav1"]))
def test_samples_are_what_was_written(version: str, codec: str, tmp_path: Path) -> None:
    """Frames are what PyAV decodes from the film's start; numbers are the rows'."""
    random = np.random.default_rng(5)
    lengths, files = [7, 1, 12, 4, 9], [0, 0, 1, 1, 1]
    robots = write_robots(tmp_path / "a", lengths, version, codec=codec, files=files, spare=2)
    check_samples(penstock.open(robots.path, index="memory"), robots, {})
    for _ in range(4):
        deltas = {
            name: sorted(random.integers(-5, 5, random.integers(1, 5)) / robots.fps)
            for name in (TOP, WRIST, "action", "grid", "next.done")
            if random.integers(3)
        }
        data = penstock.open(robots.path, delta_timestamps=deltas, index="memory")
        check_samples(data, robots, deltas)


@pytest.mark.parametrize("version", VERSIONS)
def test_some_episodes(version: str, tmp_path: Path) -> None:
    """Of chosen episodes there are the rows alone, and their neighbours are no others'."""
    robots = write_robots(tmp_path / "a", [7, 3, 8, 4], version, files=[0, 0, 0, 1])
    data = penstock.open(
        robots.path,
        episodes=[2, 0],
        fields=[TOP, "index", "task"],
        delta_timestamps={TOP: [-0.3, 0.3]},
        index="memory",
    )
    assert [sample["index"] for sample in data] == [*range(7), *range(10, 18)]
    for sample in data:
        rows, _ = robots.find_rows(int(sample["index"]), (-0.3, 0.3))
        assert np.array_equal(sample[TOP], robots.frames[TOP][rows])
        assert sample["task"] == TEXTS[robots.columns["task_index"][sample["index"]]]
    assert len(data.index.files) == 1 + (version == "v2.0")
    episodes = data.origins(np.arange(15))["episode"]
    assert episodes.tolist() == [0] * 7 + [1] * 8


def test_frames_are_scaled_and_laid_out(tmp_path: Path) -> None:
    """`size` and `layout` do as in clips."""
    robots = write_robots(tmp_path / "a", [4], cameras=(TOP,))
    film = next((robots.path / "videos").rglob("*.mp4"))
    clips = {"frames": 1, "size": (16, 20), "layout": "chw"}
    expected = penstock.open(film, clips=clips, index="memory")
    data = penstock.open(robots.path, size=(16, 20), layout="chw", index="memory")
    for row in range(4):
        assert np.array_equal(data[row][TOP], expected[row]["frames"][0])


def test_a_run_goes_on_at_any_step_on_any_world(tmp_path: Path) -> None:
    """Worlds of 1, 2 and 3 resume each other's runs: each sample once, and right."""
    robots = write_robots(tmp_path / "a", [9, 3, 8, 4])
    deltas = {TOP: [-0.2, 0.0], "action": [0.0, 0.1, 0.2]}
    data = penstock.open(robots.path, delta_timestamps=deltas)

    def read(world: int, state: Any, steps: int) -> tuple[list[int], Any]:
        loaders = [
            penstock.Loader(data, global_batch_size=6, seed=2, rank=rank, world_size=world)
            for rank in range(world)
        ]
        ids: list[int] = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for _, batches in zip(range(steps), zip(*loaders, strict=True), strict=False):
            for batch in batches:
                ids += batch.ids.tolist()
                for place, row in enumerate(batch.ids.tolist()):
                    rows, _ = robots.find_rows(row, deltas[TOP])
                    assert np.array_equal(batch[TOP][place], robots.frames[TOP][rows])
                    rows, outside = robots.find_rows(row, deltas["action"])
                    assert np.array_equal(batch["action"][place], robots.columns["action"][rows])
                    assert batch["action_is_pad"][place].tolist() == outside
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
        return ids, state

    whole, _ = read(1, None, 4)
    assert sorted(whole) == list(range(24))
    for step in range(1, 4):
        for before, after in ((1, 2), (2, 3), (3, 1)):
            first, state = read(before, None, step)
            rest, _ = read(after, state, 4)
            assert sorted(first) == sorted(whole[: 6 * step])
            assert sorted(rest) == sorted(whole[6 * step :])


def test_join_takes_windows_of_rows(tmp_path: Path) -> None:
    """Columns of another data set's rows are its samples' own, in whichever sequence."""
    robots = write_robots(tmp_path / "a", [5, 6], cameras=(TOP,))
    deltas = {"action": [-0.1, 0.0]}
    data = penstock.open(robots.path, delta_timestamps=deltas, index="memory")
    keys = np.random.default_rng(0).permutation(11)
    np.savez(tmp_path / "keys.npz", index=keys)
    rows = penstock.open(tmp_path / "keys.npz", index="memory")
    names = {"action": "action", "action_is_pad": "outside"}
    others = {made.name: None for made in data.index.made if made.name not in (*names, "index")}
    joined = penstock.join(rows, data, on="index", rename={**others, **names})
    for place, row in enumerate(keys.tolist()):
        around, outside = robots.find_rows(row, deltas["action"])
        assert np.array_equal(joined[place]["action"], robots.columns["action"][around])
        assert joined[place]["outside"].tolist() == outside


def edit_info(robots: Robots, **values: Any) -> None:
    """Change what meta/info.json says."""
    path = robots.path / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_table(path: Path, **columns: Callable[[list[Any]], list[Any]]) -> None:
    """Change columns of a Parquet file."""
    table = pq.read_table(path)
    for name, change in columns.items():
        number = table.column_names.index(name.replace("__", "/"))
        values = pa.array(change(table.column(number).to_pylist()), table.schema.types[number])
        table = table.set_column(number, table.column_names[number], values)
    pq.write_table(table, path)


EPISODES, ROWS = "meta/episodes/chunk-000/file-000.parquet", "data/chunk-000/file-000.parquet"


def _change(path: str, **columns: Callable[[list[Any]], list[Any]]) -> Callable[[Robots], None]:
    return lambda robots: edit_table(robots.path / path, **columns)


def _say(**values: Any) -> Callable[[Robots], None]:
    return lambda robots: edit_info(robots, **values)


def _remove(path: str) -> Callable[[Robots], None]:
    return lambda robots: (robots.path / path).unlink()


def _describe(**values: Any) -> Callable[[Robots], None]:
    def edit(robots: Robots) -> None:
        features = json.loads((robots.path / "meta/info.json").read_text())["features"]
        edit_info(robots, features=features | {n: features[n] | one for n, one in values.items()})

    return edit


@pytest.mark.parametrize(
    ("damage", "kind", "says"),
    [
        (_say(codebase_version="v1.6"), FormatError, r"version 'v1.6'; v2.0 to v3.0 are read"),
        (_say(fps=0), FormatError, r"info\.json: fps is 0"),
        (_say(features=3), FormatError, r"info\.json: .*fetch or write it again"),
        (_say(video_path="../{video_key}.mp4"), FormatError, r"is not the path of a file below"),
        (_say(data_path="{x.__class__}"), FormatError, r"data_path is '\{x\.__class__\}'"),
        (_say(data_path="{chunk}"), FormatError, r"data_path is '\{chunk\}' \(KeyError"),
        (_describe(action={"shape": [4]}), FormatError, r"'action' has 1 levels of lists, not all"),
        (_describe(action={"dtype": "int64"}), FormatError, r"'action' as float32 of .* not int64"),
        (_describe(index={"dtype": "language"}), UsageError, r"'index' is 'language': give fields"),
        (_describe(action={"dtype": "image"}), UsageError, r"'action' is images in Parquet: make"),
        (
            _describe(**{TOP: {"info": {"video.is_depth_map": True}}}),
            UsageError,
            r"top' is a map of depths: give fields=\['obs",
        ),
        (_remove(ROWS), MissingError, r"file-000\.parquet, episode 0: .*data/.*does not exist"),
        (_remove(f"videos/{TOP}/chunk-000/file-000.mp4"), MissingError, r"episode 0: .*does not"),
        (_remove("meta/tasks.parquet"), MissingError, r"tasks\.parquet does not exist"),
        (_remove(EPISODES), MissingError, r"meta/episodes has no Parquet files"),
        (
            _change(EPISODES, length=lambda one: [one[0], one[1] + 1, one[2]]),
            FormatError,
            r"file-000\.parquet has 4 rows of episode 1, and .* says 5: write it again, or leave",
        ),
        (
            _change(EPISODES, episode_index=lambda _: [0, 1, 5]),
            FormatError,
            r"has no episode 2, of which there are rows",
        ),
        (_change(EPISODES, episode_index=lambda _: [0, 1, 1]), FormatError, "an episode twice"),
        (
            _change(ROWS, frame_index=lambda one: [*one[:3], 9, *one[4:]]),
            FormatError,
            r"frame_index is 9 in row 3 of episode 0: rows of an episode follow each other",
        ),
        (
            _change(ROWS, episode_index=lambda one: [*one[:-1], 0]),
            FormatError,
            r"has 7 rows of episode 0 in several places, and .* says 6",
        ),
        (
            _change(EPISODES, episode_index=lambda _: [0, -1, 2]),
            FormatError,
            r"an episode twice, or below 0",
        ),
        (
            _change(ROWS, timestamp=lambda one: [*one[:2], one[2] + 0.01, *one[3:]]),
            FormatError,
            r"file-000\.mp4: episode 0, row 2 of '.*top' is at 0\.210000 s, and the nearest frame "
            r"at 0\.200000 s: leave the episode out by episodes=, or give a larger tolerance_s",
        ),
        (
            _change(ROWS, timestamp=lambda one: [*one[:2], float("nan"), *one[3:]]),
            FormatError,
            r"row 2 of '.*top' is at nan s",
        ),
        (
            _change(EPISODES, **{f"videos__{TOP}__from_timestamp": lambda one: [0, 0.6, 1.2]}),
            FormatError,
            r"episode 2, row 3 of '.*top' is at 1\.50* s, and the nearest frame at 1\.4",
        ),
        (
            _change(EPISODES, **{f"videos__{WRIST}__from_timestamp": lambda one: [0, 0.5, 1.0]}),
            FormatError,
            r"episodes 0 and 1 have the same frames of '.*wrist': fetch or write",
        ),
        (
            _change(ROWS, task_index=lambda one: [*one[:-1], 7]),
            FormatError,
            r"tasks\.parquet has no task 7, which row 14 has",
        ),
    ],
)
def test_what_is_wrong_is_named(
    damage: Callable[[Robots], None], kind: type[Exception], says: str, tmp_path: Path
) -> None:
    """Bad data is an error that names it."""
    robots = write_robots(tmp_path / "a", [6, 4, 5])
    damage(robots)
    with pytest.raises(kind, match=says):
        penstock.open(robots.path, index="memory")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            {"delta_timestamps": {TOP: [0.15]}},
            r"top' has 0\.15 s, no multiple of 1/10 s: give 0\.2",
        ),
        ({"delta_timestamps": {TOP: [0.1, 0]}}, r"top' is \[0\.1, 0\]: sort it"),
        ({"delta_timestamps": {TOP: []}}, r"top' is \[\]: give seconds in a list"),
        ({"delta_timestamps": {TOP: 0.1}}, r"top' is 0\.1: give seconds in a list"),
        ({"delta_timestamps": {TOP: ["a"]}}, r"top' is 'a'"),
        ({"delta_timestamps": {"actio": [0]}}, r"no column 'actio': did you mean 'action'"),
        ({"delta_timestamps": {"task": [0]}}, r"has 'task', which is text"),
        ({"delta_timestamps": [0]}, r"delta_timestamps is \[0\]: give \{feature"),
        ({"tolerance_s": -1}, r"tolerance_s"),
        ({"episodes": [3]}, r"there is no episode 3: there are 2, up to 1"),
        ({"episodes": []}, r"episodes is \[\]: give numbers"),
        ({"episodes": "1"}, r"episodes is '1': give numbers"),
        ({"fields": ["action"]}, r"no camera among fields: open the folder data/"),
        ({"fields": ["observation"]}, r"no column 'observation'"),
        (
            {"split": "train"},
            r"split is 'train', and episodes are of none: choose some by episodes=",
        ),
        ({"size": 3}, r"size is 3: give \(height, width\)"),
        ({"layout": "cwh"}, r"layout is 'cwh'"),
        ({"window": {"time": 2}}, r"is read as 'lerobot'"),
    ],
)
def test_wrong_options(how: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Options that cannot be are errors that say what to give."""
    robots = write_robots(tmp_path / "a", [2, 3], size=(16, 16))
    with pytest.raises(UsageError, match=says):
        penstock.open(robots.path, index="memory", **how)


def test_lines_that_are_wrong(tmp_path: Path) -> None:
    """In v2, episodes and tasks are lines of JSON."""
    robots = write_robots(tmp_path / "a", [2, 3], "v2.1", size=(16, 16))
    for name in ("episodes", "tasks"):
        path = robots.path / f"meta/{name}.jsonl"
        whole = path.read_text()
        for text in (
            "",
            "[]",
            "{}",
            '{"episode_index": "a", "length": 3}',
            "{",
            '{"task_index":1}',
        ):
            path.write_text(text)
            with pytest.raises(PenstockError, match=rf"{name}\.jsonl|has no"):
                penstock.open(robots.path, index="memory")
        path.write_text(whole)
    assert len(penstock.open(robots.path, index="memory")) == 5


def test_times_of_long_episodes_are_rounded(tmp_path: Path) -> None:
    """Times are float32: a difference that these cannot tell is no error."""
    robots = write_robots(tmp_path / "a", [4], cameras=(TOP,), size=(16, 16), fps=10 / 30001)
    assert abs(float(robots.columns["timestamp"][3]) - 9000.3) > 1e-4
    check_samples(penstock.open(robots.path, index="memory"), robots, {})
    edit_table(robots.path / ROWS, timestamp=lambda one: [*one[:2], one[2] + 1e-2, one[3]])
    with pytest.raises(FormatError, match=r"row 2 of .* is at 6000\.2\d* s, and the nearest frame"):
        penstock.open(robots.path, index="memory")
    check_samples(
        penstock.open(robots.path, tolerance_s=0.02, fields=[TOP, "index"], index="memory"),
        robots._replace(columns={"index": robots.columns["index"]}),
        {},
    )


def test_rows_may_leave_out_frames(tmp_path: Path) -> None:
    """Rows have the frames of their times, also where these do not follow each other."""
    robots = write_robots(tmp_path / "a", [6, 5], cameras=(TOP,), spare=4)
    moved = np.array([0, 0, 1, 1, 3, 4, 0, 2, 2, 2, 2]) / robots.fps
    edit_table(robots.path / ROWS, timestamp=lambda one: (np.array(one) + moved).tolist())
    film = read_film(next((robots.path / "videos").rglob("*.mp4"))).frames
    places = np.array([0, 1, 3, 4, 7, 9, 10, 13, 14, 15, 16])
    deltas = {TOP: [-0.2, 0.0, 0.1]}
    data = penstock.open(robots.path, delta_timestamps=deltas)
    again = penstock.open(robots.path, delta_timestamps=deltas)
    assert data.fingerprint == again.fingerprint
    for row, sample in enumerate(again):
        assert np.array_equal(sample[TOP], film[places[robots.find_rows(row, deltas[TOP])[0]]])


def test_a_pickled_data_set_is_the_same(tmp_path: Path) -> None:
    """Worker processes get the data set with its tasks and windows."""
    robots = write_robots(tmp_path / "a", [4, 3])
    data = penstock.open(robots.path, delta_timestamps={"action": [0, 0.1]})
    assert data.sidecar is not None
    again = pickle.loads(pickle.dumps(data))
    check_samples(again, robots, {"action": [0, 0.1]})
    assert again.fingerprint == data.fingerprint
