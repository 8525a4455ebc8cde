"""Images in loaders: the same pixels in all ways of loading, errors, counts, positions."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import images
from penstock._core import decode_jpeg, find_jpeg_positions, read_image_sizes
from penstock.errors import DecodeError, UsageError
from penstock.images.positions import find_positions, load_positions
from penstock.images.rows import BROKEN, NEEDS_WHOLE
from penstock.index.sidecar import list_saved_paths
from penstock.loader.batch import BatchReader
from tests.command import run
from tests.images import pictures

crop = images.RandomResizedCrop(24, flip=0.5, layout="chw", boxes=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures.write_folder(tmp_path_factory.mktemp("images") / "train")


def collect(loader: Any, epochs: int = 1) -> dict[tuple[int, int], Any]:
    """Return image, crop and label of each (epoch, sample)."""
    found = {}
    for _ in range(epochs):
        for batch in loader:
            rows = zip(batch["image"], batch["crop"], batch["label"], strict=True)
            for number, row in zip(batch.ids.tolist(), rows, strict=True):
                found[batch.epoch, number] = tuple(np.array(part) for part in row)
    return found


def is_same(one: dict[tuple[int, int], Any], other: dict[tuple[int, int], Any]) -> bool:
    return one.keys() == other.keys() and all(
        (a == b).all() for key in one for a, b in zip(one[key], other[key], strict=True)
    )


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[int, int], Any]:
    """Return two epochs by the function, called on each sample."""
    dataset = penstock.open(folder, index="memory")
    found = {}
    for epoch in range(2):
        for number in range(len(dataset)):
            made = crop(dataset[number], penstock.rng(5, epoch, number))
            found[epoch, number] = made["image"], made["crop"], np.array(made["label"])
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_loader_gives_what_the_function_gives(
    folder: Path, expected: dict[tuple[int, int], Any], threads: int, batch_size: int
) -> None:
    """Pixels, crops and labels depend on seed, epoch and sample alone."""
    dataset = penstock.open(folder, index="memory")
    options: Any = {"seed": 5, "decode": crop, "decode_threads": threads}
    with penstock.Loader(dataset, batch_size, **options) as loader:
        assert is_same(collect(loader, 2), expected)
        counts = loader.stats()["decoded"]
    assert counts == {"core": 30, "pillow": 10}


def test_ranks_and_resumed_runs_have_the_same_pixels(
    folder: Path, expected: dict[tuple[int, int], Any]
) -> None:
    """Three ranks, each resumed in the middle, give the pixels of one."""
    dataset = penstock.open(folder, index="memory")
    found = {}
    for rank in range(3):
        options: Any = {"seed": 5, "decode": crop, "rank": rank, "world_size": 3}
        loader = penstock.Loader(dataset, 2, **options)
        steps = iter(loader)
        for _ in range(2):
            batch = next(steps)
            found.update(collect([batch]))
        state = loader.state_dict()
        loader.close()
        resumed = penstock.Loader(dataset, 2, **options)
        resumed.load_state_dict(state)
        found.update(collect(resumed))
        resumed.close()
    assert is_same(found, {key: value for key, value in expected.items() if key[0] == 0})


def test_a_cache_changes_no_pixel(folder: Path, expected: dict[tuple[int, int], Any]) -> None:
    """Samples that the host keeps are decoded as those from storage."""
    dataset = penstock.open(folder, index="memory")
    cache = penstock.Cache(ram_bytes=1 << 22)
    options: Any = {"seed": 5, "decode": crop, "cache": cache, "rank": 0, "world_size": 1}
    with penstock.Loader(dataset, 8, **options) as loader:
        assert is_same(collect(loader, 2), expected)


@pytest.fixture(scope="module")
def both(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder, and the same files with positions beside them."""
    other = tmp_path_factory.mktemp("indexed") / "train"
    shutil.copytree(folder, other)
    find_positions(penstock.open(other))
    return folder, other


transforms = st.one_of(
    st.builds(
        images.RandomResizedCrop,
        st.integers(1, 40),
        st.sampled_from([(0.08, 1), (0.05, 0.3)]),
        flip=st.sampled_from([0, 0.5]),
        boxes=st.just(True),
        layout=st.sampled_from(["chw", "hwc"]),
        dtype=st.sampled_from(["uint8", "float16", "float32"]),
    ),
    st.builds(images.CenterCrop, st.integers(1, 40), st.sampled_from([None, 48])),
    st.builds(images.Resize, st.tuples(st.integers(1, 40), st.integers(1, 40))),
)


@given(
    transform=transforms,
    threads=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 4),
    other_ranks=st.integers(1, 4),
    stop=st.integers(0, 3),
    has_cache=st.booleans(),
    has_positions=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_no_way_of_loading_changes_a_pixel(
    both: tuple[Path, Path],
    transform: Any,
    threads: int,
    batch_size: int,
    ranks: int,
    other_ranks: int,
    stop: int,
    has_cache: bool,
    has_positions: bool,
    seed: int,
) -> None:
    """Threads, batches, ranks, a resumed run on as many ranks or others, a cache and positions:
    each sample has the pixels of the function, once."""
    dataset = penstock.open(both[has_positions], index="memory")
    options: Any = {"seed": seed, "decode": transform, "decode_threads": threads}
    found: dict[int, Any] = {}

    def keep(batch: Any) -> None:
        for row, number in enumerate(batch.ids.tolist()):
            assert number not in found
            found[number] = np.array(batch["image"][row])

    state = None
    for rank in range(ranks):
        cache = penstock.Cache(ram_bytes=1 << 22) if has_cache and ranks == 1 else None
        with penstock.Loader(
            dataset, batch_size * other_ranks, rank=rank, world_size=ranks, cache=cache, **options
        ) as loader:
            for _, batch in zip(range(stop), loader, strict=False):
                keep(batch)
            state = loader.state_dict()
    assert state is not None
    # The same global batch on the ranks that there are now.
    for rank in range(other_ranks):
        with penstock.Loader(
            dataset, batch_size * ranks, rank=rank, world_size=other_ranks, **options
        ) as loader:
            loader.load_state_dict(state)
            for batch in loader:
                if batch.epoch == 0:
                    keep(batch)
    assert sorted(found) == list(range(len(dataset)))
    for number, image in found.items():
        made = transform(dataset[number], penstock.rng(seed, 0, number))["image"]
        assert np.array_equal(made, image)


def test_files_of_other_kinds_are_pillows(tmp_path: Path) -> None:
    """Whatever a file is called and holds, its pixels are those of Pillow's convert("RGB")."""
    folder = tmp_path / "train"
    folder.mkdir()
    pixels = pictures.paint(40, 30)
    kinds = [("PNG", mode) for mode in ("RGB", "RGBA", "P", "LA", "L", "1", "I;16")]
    kinds += [("JPEG", "CMYK"), ("JPEG", "YCbCr"), ("BMP", "RGB"), ("GIF", "P"), ("TIFF", "RGB")]
    for number, (kind, mode) in enumerate(kinds):
        if mode == "I;16":
            file = io.BytesIO()
            pictures.Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(file, kind)
            data = file.getvalue()
        else:
            data = pictures.encode(pixels, kind, mode)
        (folder / f"{number:02}.JPEG").write_bytes(data)
    dataset = penstock.open(folder, index="memory")
    with penstock.Loader(dataset, 4, decode=images.Decode()) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                made = batch["image"][row].reshape(30, 40, 3)
                assert (made == pictures.decode(dataset[number]["data"])).all(), kinds[number]
        assert loader.stats()["decoded"] == {"core": 1, "pillow": len(kinds) - 1}


def test_mixtures_crop_by_the_pass(folder: Path) -> None:
    """In a mixture a sample's pass takes the place of the epoch."""
    dataset = penstock.open(folder, index="memory")
    mixture = penstock.mix([(dataset, 1), (dataset, 3)])
    with penstock.Loader(mixture, 8, seed=5, decode=crop) as loader:
        for batch, _ in zip(loader, range(4), strict=False):
            for row, number in enumerate(batch.ids.tolist()):
                rng = penstock.rng(5, int(batch["pass"][row]), number)
                made = crop(dataset[number % len(dataset)], rng)
                assert (made["image"] == batch["image"][row]).all()


def test_selections_keep_the_numbers_of_samples(
    folder: Path, expected: dict[tuple[int, int], Any]
) -> None:
    """A selection's samples are cropped as in the whole data."""
    chosen = penstock.open(folder, index="memory").select([3, 4, 11])
    with penstock.Loader(chosen, 2, seed=5, decode=crop) as loader:
        found = collect(loader)
    assert is_same(found, {(0, n): expected[0, n] for n in (3, 4, 11)})


def test_whole_images_are_ragged(folder: Path) -> None:
    """Images in their own sizes come as pixels one after the other, with their sizes."""
    dataset = penstock.open(folder, index="memory")
    with penstock.Loader(dataset, 8, decode=images.Decode()) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                made = batch["image"][row].reshape(*batch["size"][row], 3)
                assert (made == pictures.decode(dataset[number]["data"])).all()


def test_whole_images_by_pillow_are_decoded_one_by_one(tmp_path: Path) -> None:
    """Their sizes are read from headers, turned as asked, and no more than some are in memory."""
    folder = tmp_path / "train"
    folder.mkdir()
    exif = pictures.Image.Exif()
    for number in range(12):
        exif[0x0112] = number % 8 + 1
        data = pictures.encode(pictures.paint(400, 300, number), progressive=True, exif=exif)
        (folder / f"{number:02}.jpg").write_bytes(data)
    dataset = penstock.open(folder, index="memory")
    for rotate in (False, True):
        whole = images.Decode(rotate=rotate)
        with penstock.Loader(dataset, 12, decode=whole, decode_threads=1) as loader:
            tracemalloc.start()
            (batch,) = loader
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 5 * 400 * 300 * 3  # the batch itself lies in the arena
        for row, number in enumerate(batch.ids.tolist()):
            expected = whole(dataset[number]["data"])
            assert batch["size"][row].tolist() == list(expected.shape[:2])
            assert (batch["image"][row].reshape(expected.shape) == expected).all()


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "WEBP"])
def test_turned_images_of_each_kind(kind: str, tmp_path: Path) -> None:
    """A loader gives them the shape that a call gives, whatever Pillow says of the file's own."""
    folder = tmp_path / "train"
    folder.mkdir()
    exif = pictures.Image.Exif()
    for number in range(1, 9):
        exif[0x0112] = number
        data = pictures.encode(pictures.paint(50, 30, number), kind, exif=exif)
        (folder / f"{number}.{kind.lower()}").write_bytes(data)
    dataset = penstock.open(folder, index="memory")
    whole = images.Decode(rotate=True)
    with penstock.Loader(dataset, 8, decode=whole, shuffle="none") as loader:
        (batch,) = loader
    for row, number in enumerate(batch.ids.tolist()):
        expected = whole(dataset[number]["data"])
        assert batch["size"][row].tolist() == list(expected.shape[:2])
        assert (batch["image"][row].reshape(expected.shape) == expected).all()


def test_a_process_forked_while_images_are_decoded_decodes_its_own(tmp_path: Path) -> None:
    """A child uses a parent's transform, whatever the parent's threads were doing at the fork."""
    data = pictures.encode(pictures.paint(200, 200))
    small = images.Resize(8)
    expected = small(data)
    ending = threading.Event()

    def decode_on() -> None:
        while not ending.is_set():
            small(data)

    threads = [threading.Thread(target=decode_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(0 if (small(data) == expected).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def test_a_rank_without_samples_has_an_empty_batch(folder: Path) -> None:
    """The last step of a rank may have no image, of the same shape and dtype."""
    dataset = penstock.open(folder, index="memory").select([0, 1, 2])
    options: Any = {"rank": 1, "world_size": 2}
    for transform, shape in ((crop, (0, 3, 24, 24)), (images.Decode(), (0,))):
        with penstock.Loader(dataset, 1, decode=transform, **options) as loader:
            *_, batch = loader
        found = batch["image"]
        assert (found.shape if isinstance(found, np.ndarray) else (len(found),)) == shape
        assert batch["label"].dtype == np.int64


def test_tar_shards_and_extra_fields(tmp_path: Path) -> None:
    """The field with the image is found by its name, and the others stay in the batch."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(6):
            for ending, data in (
                ("jpg", pictures.encode(pictures.paint(30, 20, number))),
                ("txt", f"text {number}".encode()),
            ):
                info = tarfile.TarInfo(f"{number:03}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    dataset = penstock.open(tmp_path / "a.tar")
    with penstock.Loader(dataset, 4, decode=images.Resize(8)) as loader:
        for batch in loader:
            assert batch["image"].shape == (len(batch.ids), 8, 8, 3)
            assert len(batch["txt"]) == len(batch.ids)
    with pytest.raises(UsageError, match="'nothing' is no field of bytes"):
        penstock.Loader(dataset, 4, decode=images.Resize(8, field="nothing"))


def test_samples_without_images_are_told_when_the_loader_is_made(tmp_path: Path) -> None:
    """Records of numbers are no images."""
    np.zeros((10, 4), np.float32).tofile(tmp_path / "x.bin")
    dataset = penstock.open(tmp_path / "x.bin", dtype="float32", shape=(4,))
    with pytest.raises(UsageError, match="no field with the bytes of images"):
        penstock.Loader(dataset, 4, decode=images.Resize(8))


def test_damage_names_the_sample_and_the_next_batch_follows(tmp_path: Path) -> None:
    """A damaged JPEG is raised at its step with file, byte and row; the next call goes on."""
    folder = pictures.write_folder(tmp_path / "train", 6, progressive=False)
    bad = folder / "class-0" / "004.jpg"
    data = bad.read_bytes()
    bad.write_bytes(data[: len(data) * 2 // 3])
    dataset = penstock.open(folder, index="memory")
    for transform in (images.Resize(8), images.Decode()):
        with penstock.Loader(dataset, 1, shuffle="none", decode=transform) as loader:
            steps, kept = iter(loader), []
            while True:
                try:
                    kept.append(int(next(steps).ids[0]))
                except DecodeError as error:
                    text = str(error)
                except StopIteration:
                    break
        assert len(kept) == 5
        assert "004.jpg" in text
        assert "is damaged at byte" in text
        assert "row" in text


def test_stray_bytes_are_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes between segments, which Pillow skips, are skipped and counted."""
    folder = pictures.write_folder(tmp_path / "train", 4, progressive=False)
    for path in sorted(folder.rglob("*.jpg"))[:2]:
        data = path.read_bytes()
        at = data.index(b"\xff\xdb")
        path.write_bytes(data[:at] + b"\0\0\0" + data[at:])
        assert (images.Decode()(path.read_bytes()) == images.Decode()(data)).all()
    dataset = penstock.open(folder, index="memory")
    with penstock.Loader(dataset, 4, decode=images.Resize(8)) as loader:
        list(loader)
        assert loader.stats()["decoded"] == {"core": 4, "stray_bytes": 2}
    assert sum("3 stray bytes" in record.getMessage() for record in caplog.records) == 1


# -- positions -------------------------------------------------------------------------------------


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    folder = pictures.write_folder(tmp_path / "train", 12)
    report = find_positions(penstock.open(folder))
    assert (report.others, report.broken) == (3, ())
    assert report.saved.images == 9
    return folder


def load_all(folder: Path) -> tuple[dict[tuple[int, int], Any], dict[str, int]]:
    with penstock.Loader(penstock.open(folder), 5, seed=5, decode=crop) as loader:
        return collect(loader, 2), loader.stats()["decoded"]


def test_positions_change_no_pixel(indexed: Path) -> None:
    """With positions and without, the pixels are the same."""
    with_positions, counts = load_all(indexed)
    assert counts == {"core": 18, "pillow": 6}
    Path(f"{indexed}.positions.penstock").unlink()
    assert is_same(with_positions, load_all(indexed)[0])


def test_positions_read_fewer_bytes(tmp_path: Path) -> None:
    """With positions only the header and the rows of the crop are read."""
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(6):
        data = pictures.encode(pictures.paint(300, 400, number), quality=95)
        (folder / f"{number}.jpg").write_bytes(data)
    dataset = penstock.open(folder)
    options: Any = {"seed": 5, "decode": images.RandomResizedCrop(24, (0.1, 0.2), boxes=True)}
    pixels, read = [], []
    for _ in range(2):
        with penstock.Loader(dataset, 4, **options) as loader:
            pixels.append([np.array(batch["image"]) for batch in loader])
            read.append(loader.stats()["bytes"])
        find_positions(dataset)
    assert all((a == b).all() for a, b in zip(*pixels, strict=True))
    assert read[0] == dataset.index.total_bytes
    assert read[1] < 0.7 * read[0]


def test_a_reader_of_given_samples_reads_fewer_bytes(tmp_path: Path) -> None:
    """Workers, which read the samples that they are told, read the rows of the crops alone."""
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(4):
        data = pictures.encode(pictures.paint(300, 400, number), quality=95)
        (folder / f"{number}.jpg").write_bytes(data)
    dataset = penstock.open(folder)
    find_positions(dataset)
    small = images.RandomResizedCrop(24, (0.1, 0.2), boxes=True)
    ids = np.array([2, 0, 3, 1], np.uint64)
    read = []
    for path in (None, str(folder)):
        reader = BatchReader(dataset.index, decode=small, path=path)
        for epoch in range(2):
            batch = reader.read(ids, epoch=epoch, seed=5)
            for row, number in enumerate(ids.tolist()):
                expected = small(dataset[number], penstock.rng(5, epoch, number))
                assert (batch["image"][row] == expected["image"]).all()
        assert reader._reader._engine is not None
        read.append(reader._reader._engine.counters()["bytes"])
        by_row = reader.read(ids[:1], epoch=0, seed=5, by_row=True)
        assert (by_row["image"][0] == small(dataset[2], penstock.rng(5, 0, 0))["image"]).all()
        reader.close()
    assert read[0] == 2 * dataset.index.total_bytes
    assert read[1] < 0.7 * read[0]


def test_a_file_that_no_longer_fits_its_positions_is_read_whole(tmp_path: Path) -> None:
    """A file that was replaced unseen is decoded from its own bytes, or is a DecodeError."""
    folder = tmp_path / "train"
    folder.mkdir()
    path = folder / "0.jpg"
    path.write_bytes(pictures.encode(pictures.paint(300, 400, 1), quality=95))
    dataset = penstock.open(folder)
    find_positions(dataset)
    before = path.stat()
    other = pictures.encode(pictures.paint(200, 300, 2), quality=95)
    path.write_bytes(other.ljust(before.st_size, b"\0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    small = images.RandomResizedCrop(24, (0.1, 0.2))
    loader = penstock.Loader(dataset, 1, decode=small)
    with pytest.warns(RuntimeWarning, match="do not fit this image"):
        (batch,) = loader
    loader.close()
    expected = small(other, penstock.rng(0, 0, 0))
    assert (batch["image"][0] == expected).all()
    cut = other[: len(other) // 2] + b"\xff\xd9"
    path.write_bytes(cut.ljust(before.st_size, b"\0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    loader = penstock.Loader(dataset, 1, decode=images.Resize(24))
    with pytest.raises(DecodeError, match=r"0\.jpg"):
        next(iter(loader))
    loader.close()


def test_memory_is_not_taken_for_pixels_that_a_file_cannot_have(tmp_path: Path) -> None:
    """A small file whose header claims many pixels is refused before memory is taken."""
    folder = tmp_path / "train"
    folder.mkdir()
    data = bytearray(pictures.encode(pictures.paint(40, 40)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\x20\x00\x20\x00"
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(data)
    dataset = penstock.open(folder)
    with penstock.Loader(dataset, 3, decode=images.Decode()) as loader:
        with pytest.raises(DecodeError, match="file ends inside the entropy-coded data"):
            list(loader)
        assert "decoded" not in loader.stats()
    sizes, problems = read_image_sizes(
        np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64), 1 << 40
    )
    assert sizes.tolist() == [0, 0]
    assert problems[0][1:3] == (BROKEN, len(data))


@pytest.mark.filterwarnings("ignore:.*positions.*:RuntimeWarning")
def test_an_edited_file_of_the_same_size_and_header_is_not_decoded_by_old_positions(
    tmp_path: Path,
) -> None:
    """Files whose lower half was painted over unseen give their own pixels."""
    folder = tmp_path / "train"
    folder.mkdir()
    pixels = [pictures.paint(64, 96, number) for number in range(32)]
    for number, one in enumerate(pixels):
        (folder / f"{number:02}.jpg").write_bytes(pictures.encode(one, quality=80).ljust(1 << 14))
    dataset = penstock.open(folder)
    find_positions(dataset)
    edited = []
    for number, one in enumerate(pixels):
        path = folder / f"{number:02}.jpg"
        before = path.stat()
        one[40:] = 128 + (np.arange(64)[:, None] + number) % 8
        edited.append(pictures.encode(one, quality=80).ljust(before.st_size))
        path.write_bytes(edited[-1])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    small = images.RandomResizedCrop(8, (0.05, 0.2))
    with penstock.Loader(dataset, 8, decode=small) as loader:
        for _ in range(4):
            for batch in loader:
                for row, number in enumerate(batch.ids.tolist()):
                    expected = small(edited[number], penstock.rng(0, batch.epoch, number))
                    assert (batch["image"][row] == expected).all()


def test_a_crop_of_the_lowest_row_alone_notices_old_positions() -> None:
    """The end of the row above tells whether the lowest row's position fits."""
    out = np.empty((5, 8, 3), np.uint8)
    kinds: list[Any] = [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"mode": "L"}]
    for number in range(24):
        files = [
            np.frombuffer(pictures.encode(pictures.paint(64, 96, seed), **kinds[number % 4]), "u1")
            for seed in (number, 100 + number)
        ]
        rows, _ = find_jpeg_positions(files[0], 0, np.empty(0, np.uint8))
        _, problem = decode_jpeg(files[0], 16, 91, out, 0, rows, stretch_only=True)
        assert problem[0] == 0
        assert (out == pictures.decode(files[0].tobytes())[91:96, 16:24]).all()
        _, problem = decode_jpeg(files[1], 16, 91, out, 0, rows)
        assert problem[0] == NEEDS_WHOLE


def test_fields_with_the_names_of_results_are_told_when_the_loader_is_made(tmp_path: Path) -> None:
    """A column called "image" or "size" would take the place of the pixels or their sizes."""
    (tmp_path / "a.jpg").write_bytes(pictures.encode(pictures.paint(30, 20)))
    (tmp_path / "table.csv").write_text("path,image,size\na.jpg,7,8\n")
    for columns, name in ((None, "image"), (["size"], "size")):
        dataset = penstock.open(tmp_path / "table.csv", files="path", columns=columns)
        with pytest.raises(UsageError, match=f"have a field '{name}' beside"):
            penstock.Loader(dataset, 1, decode=images.Decode())


@pytest.mark.filterwarnings("ignore:.*positions of.*:RuntimeWarning")
def test_positions_of_the_user_are_used_beside_old_ones_of_the_data(
    indexed: Path,
) -> None:
    """Old positions in a folder that the user cannot write do not hide those in his cache."""
    path = indexed / "class-0" / "000.jpg"
    path.write_bytes(pictures.encode(pictures.paint(80, 70, 99)))
    dataset = penstock.open(indexed, index="rebuild")
    old = Path(f"{indexed}.positions.penstock")
    kept = old.read_bytes()
    saved = find_positions(dataset, force=True).saved
    own = Path(list_saved_paths(str(indexed), "positions")[-1])
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(Path(saved.path).read_bytes())
    old.write_bytes(kept)
    found = load_positions(dataset.index, 0, str(indexed))
    own.unlink()
    assert found is not None
    assert found.path == str(own)


@pytest.mark.filterwarnings("ignore:.*positions.*:RuntimeWarning")
def test_damaged_positions_never_change_pixels(indexed: Path) -> None:
    """A changed byte anywhere in the file leaves the pixels as they are."""
    place = Path(f"{indexed}.positions.penstock")
    good = place.read_bytes()
    expected, _ = load_all(indexed)
    for at in range(0, len(good), 391):
        place.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        assert is_same(load_all(indexed)[0], expected)


def test_positions_that_do_not_fit_are_dropped_with_a_warning(indexed: Path) -> None:
    """Entries with a wrong checksum of their own are not used, and counted."""
    dataset = penstock.open(indexed)
    saved = load_positions(dataset.index, 0, str(indexed))
    assert saved is not None
    from penstock._core import RowPositions

    entries = saved.entries.copy()
    entries[5] ^= 1
    native = RowPositions(
        entries, saved.first, np.array(saved.sums), np.array(saved.heads).reshape(-1)
    )
    loader = penstock.Loader(dataset, 5, seed=5, decode=crop)
    assert loader._rows is not None
    loader._rows.positions = native  # type: ignore[attr-defined]
    with pytest.warns(RuntimeWarning, match="do not fit this image"):
        found = collect(loader)
    assert loader.stats()["decoded"]["positions_dropped"] == 1
    loader.close()
    expected, _ = load_all(indexed)
    assert is_same(found, {key: value for key, value in expected.items() if key[0] == 0})


def test_positions_of_changed_files_are_refused(indexed: Path) -> None:
    """Positions of another version of the data are not used, with a warning."""
    path = indexed / "class-0" / "000.jpg"
    path.write_bytes(pictures.encode(pictures.paint(80, 70, 99)))
    penstock.open(indexed, index="rebuild")
    with pytest.warns(RuntimeWarning, match="index of positions"):
        changed, counts = load_all(indexed)
    assert counts == {"core": 18, "pillow": 6}
    Path(f"{indexed}.positions.penstock").unlink()
    assert is_same(changed, load_all(indexed)[0])


def test_finding_positions_reports_damage(tmp_path: Path) -> None:
    """Damage that no crop would meet is found when everything is decoded."""
    folder = pictures.write_folder(tmp_path / "train", 4, progressive=False)
    bad = folder / "class-1" / "003.jpg"
    bad.write_bytes(bad.read_bytes()[:-20])
    report = find_positions(penstock.open(folder))
    ((sample, text),) = report.broken
    assert penstock.open(folder).index.key(sample).endswith("003.jpg")
    assert "003.jpg" in text
    assert report.saved.images == 3
    again = find_positions(penstock.open(folder))
    assert again.saved.images == 3


def test_the_command_finds_positions_and_shows_them(tmp_path: Path) -> None:
    """`penstock index --positions` saves them, and `penstock inspect` says what they take."""
    folder = pictures.write_folder(tmp_path / "train", 4)
    done = run("index", folder, "--positions")
    assert "3 of 4 images" in done.stdout
    assert "1 images are of other kinds" in done.stdout
    assert "3 of 4 images" in run("inspect", folder).stdout
    bad = folder / "class-0" / "000.jpg"
    bad.write_bytes(bad.read_bytes()[:-20])
    damaged = run("index", folder, "--positions", "--force", code=1)
    assert "000.jpg" in damaged.stdout + damaged.stderr


@pytest.mark.parametrize("has_older", [False, True])
def test_a_search_that_is_interrupted_leaves_the_positions_as_they_were(
    tmp_path: Path, has_older: bool
) -> None:
    """Ctrl-C while everything is decoded: the old positions, or none, and no other file."""
    folder = pictures.write_folder(tmp_path / "train", 70, progressive=False)
    dataset = penstock.open(folder)
    before = find_positions(dataset).saved.entries.tobytes() if has_older else b""
    files = sorted(os.listdir(tmp_path))

    def interrupt(done: int, count: int) -> None:
        assert 0 < done < count
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_positions(dataset, force=True, progress=interrupt)
    assert sorted(os.listdir(tmp_path)) == files
    found = load_positions(dataset.index, 0, str(folder))
    assert (b"" if found is None else found.entries.tobytes()) == before
    assert find_positions(dataset).saved.images == 70


# Finds positions once for each point, and is killed there: at an event that the interpreter tells,
# or when the file has so many bytes.
KILLED = """
import os, resource, signal, sys
import penstock
from penstock.images.positions import find_positions

folder, points = sys.argv[1], sys.argv[2:]
dataset = penstock.open(folder)

def find(point):
    def hook(event, arguments):
        if event == point and any("positions" in str(one) for one in arguments):
            os.kill(os.getpid(), signal.SIGKILL)
    if point.isdigit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(point), int(point)))
    else:
        sys.addaudithook(hook)
    find_positions(dataset, force=True)

for point in points:
    child = os.fork()
    if child == 0:
        find(point)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(point, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other systems end nothing")
@pytest.mark.parametrize("has_older", [False, True])
def test_a_search_that_is_killed_leaves_valid_positions_or_none(
    tmp_path: Path, has_older: bool
) -> None:
    """Killed before the file is made, at bytes of it, and before it takes its name."""
    folder = pictures.write_folder(tmp_path / "train", 12)
    dataset = penstock.open(folder)
    place = Path(f"{folder}.positions.penstock")
    find_positions(dataset)
    whole = place.read_bytes()
    expected, _ = load_all(folder)
    if not has_older:
        place.unlink()
    points = ["open", "os.rename", *(str(len(whole) * part // 8) for part in range(8))]
    command = [sys.executable, "-c", KILLED, str(folder), *points]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdin is not None
        assert killed.stdout is not None
        for point in points:
            name, number = killed.stdout.readline().split()
            assert (name, number != "0") == (point, True)
            assert (place.read_bytes() == whole) if has_older else not place.exists()
            assert is_same(load_all(folder)[0], expected)
            print(file=killed.stdin, flush=True)
    assert killed.returncode == 0
    assert find_positions(dataset, force=True).saved.images == 9
    assert place.read_bytes() == whole
