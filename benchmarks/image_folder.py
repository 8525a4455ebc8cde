"""python -m benchmarks.image_folder [--quick] [--photos FOLDER] [--wheel WHEEL]: a whole epoch.

640 photographs in class folders, RandomResizedCrop(224), a flip, normalised float32, batches of
64: torch's DataLoader over torchvision's ImageFolder with two workers, against the same script with
one import changed, with the four lines of `from_torchvision`, and these with positions; and other
loaders at the same work. Each contender is a process of its own; pairs take turns, and an epoch
counts from its first request to its last batch. Without torchvision its operations are done by
Pillow and torch. `--wheel` repeats penstock's rows with the wheel's modules. Record:
benchmarks/results/image-folder.json.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .image_rivals import Absent, load
from .record import ROOT, Record, Row
from .text import make_row, take_turns
from .torchvision_module import load_torchvision

SIZE, BATCH, WORKERS, CLASSES = 224, 64, 2, 50
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Epoch = Callable[[], Iterable[Any]]
"""Function that begins an epoch and returns its batches of (images, labels)."""


# -- contenders, each in a process of its own ------------------------------------------------------


def find_torchvision() -> Any:
    """Return torchvision, or None."""
    try:
        return load_torchvision()
    except ImportError:
        return None


def make_transform(torchvision: Any) -> Any:
    transforms = torchvision.transforms
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


class PillowFolder:
    """torchvision's ImageFolder and the transform's exact operations, by Pillow and torch."""

    def __init__(self, root: Path) -> None:
        self.samples = [
            (str(path), number)
            for number, place in enumerate(sorted(root.iterdir()))
            for path in sorted(place.iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        from PIL import Image

        import torch

        path, label = self.samples[number]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        left, top, width, height = draw_crop(*image.size)
        cut = image.crop((left, top, left + width, top + height))
        cut = cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if torch.rand(1) < 0.5:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(cut, np.uint8)).permute(2, 0, 1).contiguous()
        values = pixels.to(dtype=torch.float32).div(255)
        means, stds = torch.as_tensor(MEAN), torch.as_tensor(STD)
        return values.sub_(means.view(-1, 1, 1)).div_(stds.view(-1, 1, 1)), label


def draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw left, top, width and height of a crop by torchvision's rule, from torch's generator."""
    import torch

    ratios = torch.log(torch.tensor((3 / 4, 4 / 3)))
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(0.08, 1).item()
        ratio = torch.exp(torch.empty(1).uniform_(ratios[0].item(), ratios[1].item())).item()
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            top = int(torch.randint(0, height - rows + 1, (1,)).item())
            return int(torch.randint(0, width - columns + 1, (1,)).item()), top, columns, rows
    return 0, 0, width, height


def open_folder(root: Path) -> Any:
    torchvision = find_torchvision()
    if torchvision is None:
        return PillowFolder(root)
    return torchvision.datasets.ImageFolder(root, make_transform(torchvision))


def use_torch(root: Path) -> Epoch:
    """The script that people have."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        open_folder(root), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: loader


def use_import(root: Path) -> Epoch:
    """The same with one import changed."""
    from penstock.torch import DataLoader

    loader = DataLoader(
        open_folder(root), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: loader


def use_penstock(root: Path) -> Epoch:
    """The four lines."""
    import penstock
    from penstock.torch import DataLoader

    torchvision = find_torchvision()
    if torchvision is None:
        crop: Any = penstock.images.RandomResizedCrop(
            SIZE, flip=0.5, layout="chw", dtype="float32", mean=MEAN, std=STD
        )
    else:
        crop = penstock.images.from_torchvision(make_transform(torchvision))
    loader = DataLoader(
        penstock.open(root),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        decode=crop,
        as_tuple=("image", "label"),
    )
    return lambda: loader


def use_spdl(root: Path) -> Epoch:
    """SPDL's pipeline of threads over FFmpeg's decoder and filters; crops are drawn as above."""
    from PIL import Image

    import torch

    io_, pipeline = load("spdl.io"), load("spdl.pipeline")
    try:
        options = io_.decode_config(decoder_options={"threads": "1"})
    except RuntimeError as error:
        raise Absent(f"spdl finds no FFmpeg: {str(error).splitlines()[0][:60]}") from None
    samples = PillowFolder(root).samples
    means, stds = (torch.tensor(value).view(1, 3, 1, 1) for value in (MEAN, STD))

    def decode(sample: tuple[str, int]) -> tuple[Any, int]:
        path, label = sample
        data = Path(path).read_bytes()
        left, top, width, height = draw_crop(*Image.open(io.BytesIO(data)).size)
        flip = "hflip," if torch.rand(1) < 0.5 else ""
        filters = (
            f"crop={width}:{height}:{left}:{top}:exact=1,"
            f"scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=rgb24"
        )
        buffer = io_.load_image(data, filter_desc=filters, decode_config=options)
        return io_.to_numpy(buffer), label

    def collate(items: list[tuple[Any, int]]) -> tuple[Any, Any]:
        pixels = torch.from_numpy(np.stack([item for item, _ in items])).permute(0, 3, 1, 2)
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return values.sub_(means).div_(stds), torch.tensor([label for _, label in items])

    def begin() -> Iterator[Any]:
        order = torch.randperm(len(samples)).tolist()
        build = pipeline.PipelineBuilder().add_source(samples[number] for number in order)
        build = build.pipe(decode, concurrency=WORKERS).aggregate(BATCH).pipe(collate).add_sink(4)
        made = build.build(num_threads=WORKERS)
        with made.auto_stop():
            yield from made.get_iterator(timeout=60)

    return begin


def use_dali(root: Path) -> Epoch:
    """DALI's processor path: its reader, a decoder of the crop alone, fused normalisation."""
    import torch

    dali = load("nvidia.dali", "nvidia-dali-cuda120 is not installed")
    fn, types = load("nvidia.dali.fn"), load("nvidia.dali.types")

    @dali.pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None)  # type: ignore[untyped-decorator, unused-ignore]
    def make() -> Any:
        files, labels = fn.readers.file(file_root=str(root), random_shuffle=True, name="files")
        part = fn.decoders.image_random_crop(
            files,
            device="cpu",
            output_type=types.RGB,
            jpeg_fancy_upsampling=True,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            num_attempts=10,
        )
        pixels = fn.resize(part, size=(SIZE, SIZE), antialias=True, interp_type=types.INTERP_LINEAR)
        return fn.crop_mirror_normalize(
            pixels,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=fn.random.coin_flip(),
        ), labels

    made = make()
    made.build()
    count = made.epoch_size("files")

    def begin() -> Iterator[Any]:
        for _ in range(-(-count // BATCH)):
            pixels, labels = made.run()
            yield tuple(
                torch.from_numpy(np.array(one.as_tensor(), copy=True)) for one in (pixels, labels)
            )

    return begin


class _Decoded:
    """Pixels and labels for FFCV's writer."""

    def __init__(self, samples: list[tuple[str, int]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self._samples[number]
        return np.asarray(Image.open(path).convert("RGB")), label


def use_ffcv(root: Path) -> Epoch:
    """FFCV over a file of its own: photographs at quality 90, 4:2:0 as it writes them."""
    load("ffcv", "ffcv is not installed")
    fields, writer = load("ffcv.fields"), load("ffcv.writer")
    loader, decoders = load("ffcv.loader"), load("ffcv.fields.rgb_image")
    transforms, basics = load("ffcv.transforms"), load("ffcv.fields.basics")
    path = root.with_suffix(".beton")
    if not path.exists():
        kinds = {
            "image": fields.RGBImageField(write_mode="jpg", jpeg_quality=90),
            "label": fields.IntField(),
        }
        made = writer.DatasetWriter(str(path), kinds, num_workers=1)
        made.from_indexed_dataset(_Decoded(PillowFolder(root).samples))
    levels = [np.array(value) * 255 for value in (MEAN, STD)]
    batches = loader.Loader(
        str(path),
        batch_size=BATCH,
        num_workers=WORKERS,
        os_cache=True,
        order=loader.OrderOption.RANDOM,
        drop_last=False,
        pipelines={
            "image": [
                decoders.RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
                transforms.RandomHorizontalFlip(),
                transforms.NormalizeImage(*levels, np.float32),
                transforms.ToTensor(),
                transforms.ToTorchImage(convert_back_int16=False),
            ],
            "label": [basics.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()],
        },
    )
    return lambda: batches


CONTENDERS: dict[str, Callable[[Path], Epoch]] = {
    "torch": use_torch,
    "import": use_import,
    "penstock": use_penstock,
    "SPDL": use_spdl,
    "DALI, processor path": use_dali,
    "FFCV, its own format": use_ffcv,
}


def list_processes(process: int) -> Iterator[int]:
    """Yield a process and all that it has started, which live."""
    yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from list_processes(int(child))


def count_cpu_s() -> float:
    """Processor seconds of this process and of its workers, those that ended included."""
    ticks = 0
    for process in list_processes(os.getpid()):
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, words[11:15]))  # user and system, and those of children that ended
    return ticks / os.sysconf("SC_CLK_TCK")


def serve(name: str, root: str, epochs: int) -> None:
    """Run epochs for each line of input, and answer by the time and processor time of one."""
    import torch

    torch.set_num_threads(1)
    try:
        begin = CONTENDERS[name](Path(root))
        images = run_epoch(begin)
    except Absent as error:
        print(json.dumps({"absent": str(error)}), flush=True)
        return
    print(json.dumps({"images": images}), flush=True)
    for _ in sys.stdin:
        began_cpu_s, began_s = count_cpu_s(), time.perf_counter()
        for _ in range(epochs):
            assert run_epoch(begin) == images
        spent_s = time.perf_counter() - began_s
        print(json.dumps([spent_s / epochs, (count_cpu_s() - began_cpu_s) / epochs]), flush=True)
    os._exit(0)  # workers and threads of loaders end with the process


def run_epoch(begin: Epoch) -> int:
    """Take all batches of an epoch, and return the number of images."""
    images = 0
    for pixels, labels in begin():
        assert tuple(pixels.shape[1:]) == (3, SIZE, SIZE), pixels.shape
        assert str(pixels.dtype) == "torch.float32", pixels.dtype
        assert len(pixels) == len(labels)
        images += len(pixels)
    return images


# -- rows ------------------------------------------------------------------------------------------


START = """
import sys
site, name, root, epochs = sys.argv[1:]
if site:  # before what finds the editable modules
    sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
    sys.path.insert(0, site)
import penstock
from penstock import _core
assert not site or all(str(one.__file__).startswith(site) for one in (penstock, _core))
from benchmarks.image_folder import serve
serve(name, root, int(epochs))
"""
"""Program of a contender's process."""


class Contender:
    """Process of a contender.

    site:  folder of the modules of a wheel; None for those of this tree.
    """

    def __init__(self, name: str, root: Path, epochs: int, site: Path | None = None) -> None:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = ":".join(filter(None, paths))
        command = [sys.executable, "-c", START, str(site or ""), name, str(root), str(epochs)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=root.parent,
        )
        first = self._read()
        self.absent = first.get("absent")
        self.images = int(first.get("images", 0))
        self.times: list[list[float]] = []

    def __call__(self) -> float:
        """Return the seconds of an image."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        self.times.append([spent_s / self.images for spent_s in self._read()])
        return self.times[-1][0]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and line[0] not in "{[":  # words of a library
            line = self._process.stdout.readline()
        return json.loads(line) if line else {"absent": "it failed, as said above"}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def race(
    title: str, ours: Contender, theirs: Contender, targets: list[float | None], rounds: int
) -> list[tuple[Row, Any]]:
    """Rows of images a second and of processor time, of one contender against another."""
    if ours.absent or theirs.absent:
        return [(Row(title, None, "", note=f"absent: {ours.absent or theirs.absent}"), None)]
    ours.times, theirs.times = [], []
    pairs = take_turns(ours, theirs, rounds)
    cpu = [[one[1], other[1]] for one, other in zip(ours.times, theirs.times, strict=True)]
    rows = []
    for words, values, target in zip(("images/s", "CPU"), (pairs, cpu), targets, strict=True):
        note = "of processor time" if words == "CPU" else "of the time that passes"
        row = make_row(f"{title}, {words}", values, 1, "images/s", target, 0, note)
        rows.append((row, {"seconds of an image": values, "images": ours.images}))
    return rows


def write_folders(source: Path, target: Path, count: int) -> None:
    """Write photographs to class folders, again and again until there are enough."""
    photographs = sorted(path for path in source.rglob("*") if path.suffix[:2].lower() == ".j")
    for number in range(count):
        place = target / f"class-{number % CLASSES:02}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photographs[number % len(photographs)], place / f"{number:05}.jpg")


def penstock_rows(
    folders: tuple[Path, Path], site: Path | None, rounds: int
) -> list[tuple[Row, Any]]:
    """penstock's three rows against torch's, of this tree or of a wheel."""
    plain, indexed = folders
    suffix = "" if site is None else ", from the wheel"
    rows: list[tuple[Row, Any]] = []
    theirs = Contender("torch", plain, 1)
    for title, name, folder, epochs, targets in (
        ("one import changed", "import", plain, 1, [1.08, None]),
        ("four lines changed", "penstock", plain, 2, [3.5, 3.5]),
        ("four lines changed, positions", "penstock", indexed, 2, [4.0, 4.0]),
    ):
        ours = Contender(name, folder, epochs, site)
        title = f"ImageFolder, {title}{suffix} / torch, {WORKERS} workers"
        rows += race(title, ours, theirs, targets, rounds)
        ours.close()
    theirs.close()
    return rows


def rival_rows(folder: Path, rounds: int) -> list[tuple[Row, Any]]:
    """The four lines against other loaders at the same work."""
    rows: list[tuple[Row, Any]] = []
    ours = Contender("penstock", folder, 2)
    for name in ("SPDL", "DALI, processor path", "FFCV, its own format"):
        theirs = Contender(name, folder, 1)
        for row, raw in race(f"from_torchvision / {name}", ours, theirs, [None, None], rounds):
            if row.low is not None and row.high is not None:
                verdict = "won" if row.low > 1 else "lost" if row.high < 1 else "no difference"
                row = replace(row, note=f"{verdict}; {row.note}")
            rows.append((row, raw))
        theirs.close()
    ours.close()
    return rows


def explain_row(root: Path) -> tuple[Row, Any]:
    """Whether `explain` of the changed import names the four lines, and the gain of these."""
    title = "explain() with one import changed names the lines: gain of a thread"
    torchvision = find_torchvision()
    if torchvision is None:
        return Row(title, None, "", note="absent: torchvision"), None
    from penstock.torch import DataLoader

    dataset = torchvision.datasets.ImageFolder(root, make_transform(torchvision))
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS)
    for _ in loader:
        pass
    text = str(loader.explain())
    loader.close()
    wanted = (
        "import penstock\n",
        "from penstock.torch import DataLoader\n",
        f"dataset = penstock.open({str(root)!r})\n",
        "decode=penstock.images.from_torchvision(transform)",
    )
    met = all(line in text for line in wanted)
    gain = float(text.split("a thread decodes ")[1].split()[0]) if met else None
    return Row(title, gain, "x", met=met, target=1.0, ratio=gain, note="measured on 24 files"), None


def difference_rows(source: Path, most: int) -> list[tuple[Row, Any]]:
    """Differences of deterministic pipelines from torchvision's own, in levels."""
    import torch
    from penstock import images

    torchvision = find_torchvision()
    if torchvision is None:
        return [(Row("from_torchvision - torchvision", None, "", note="absent: torchvision"), None)]
    from PIL import Image

    v1, v2 = torchvision.transforms, torchvision.transforms.v2
    normal = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    narrow = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    pipelines = {
        "Resize(256), CenterCrop(224)": [v1.Resize(256), v1.CenterCrop(SIZE), *normal],
        "v2, flipped, Resize((224, 224))": [
            v2.RandomHorizontalFlip(1.0),
            v2.Resize((SIZE, SIZE)),
            *narrow,
        ],
        "CenterCrop(400), padded if small": [v1.CenterCrop(400), *normal],
        "tensors, Resize(256), CenterCrop(224)": [
            *narrow[:2],
            v2.Resize(256),
            v2.CenterCrop(SIZE),
            narrow[2],
        ],
    }
    photographs = sorted(path for path in source.rglob("*") if path.suffix[:2].lower() == ".j")
    unit = 255 * np.array(STD).reshape(3, 1, 1)
    rows: list[tuple[Row, Any]] = []
    for name, operations in pipelines.items():
        transform = v1.Compose(operations)
        ours = images.from_torchvision(transform)
        rng = np.random.default_rng(0)
        means, largest = [], 0.0
        for path in photographs[:most]:
            data = path.read_bytes()
            theirs = np.asarray(transform(Image.open(io.BytesIO(data)).convert("RGB")))
            difference = np.abs(ours(data, rng) - theirs) * unit
            means.append(float(difference.mean()))
            largest = max(largest, float(difference.max()))
        mean = float(np.mean(means))
        note = f"{len(means)} photographs; most {largest:.2f}"
        title = f"from_torchvision - torchvision, {name}: mean"
        rows.append((Row(title, mean, "levels", None, mean, 0.5, mean <= 0.5, note=note), None))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Photographs end to end.")
    parser.add_argument("--photos", type=Path, help="folder of JPEG; by default synthetic ones")
    parser.add_argument("--wheel", type=Path, help="penstock's rows from this wheel, too")
    parser.add_argument("--quick", action="store_true", help="256 images, few rounds; own record")
    options = parser.parse_args()
    from .__main__ import finish
    from .images import make_photographs

    # Whole batches, and as many for each worker.
    count, rounds = (256, 3) if options.quick else (640, 9)
    source = (options.photos or make_photographs(options.quick)).resolve()
    configuration = {"images": count, "rounds": rounds, "wheel": str(options.wheel or "")}
    configuration |= {"torchvision": getattr(find_torchvision(), "__version__", "absent: Pillow")}
    record = Record("image-folder" + "-quick" * options.quick, 0, configuration)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        plain, indexed = place / "photographs", place / "indexed"
        for folder in (plain, indexed):
            write_folders(source, folder, count)
        command = [sys.executable, "-m", "penstock", "index", "--positions", str(indexed)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = penstock_rows((plain, indexed), None, rounds)
        if options.wheel is not None:
            with zipfile.ZipFile(options.wheel) as archive:
                archive.extractall(place / "site")
            rows += penstock_rows((plain, indexed), place / "site", rounds)
        rows += rival_rows(plain, rounds)
        rows.append(explain_row(plain))
        rows += difference_rows(source, 100)
    for row, raw in rows:
        record.rows.append(row)
        if raw is not None:
            record.raw[row.name] = raw
    finish(record)


if __name__ == "__main__":
    main()
