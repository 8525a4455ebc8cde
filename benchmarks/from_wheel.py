"""The wheel that users install beside the build of this tree, block by block.

    python -m benchmarks.from_wheel dist/penstock-....whl [--photos FOLDER] [--only jpeg text]

penstock's contender of each race of `benchmarks`, and some loops of `image_folder`, `images` and
`text`, start with the modules of the wheel and with those of the editable install; the two live at
once, take turns, and have to give the same samples. A row is the wheel's rate, held against this
tree's. Record: benchmarks/results/wheel.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from .__main__ import finish
from .contender import ROOT
from .corpus import Corpora, Sizes, make_warm
from .image_folder import write_folders
from .images import make_photographs
from .pairing import Pairs
from .race import Effort, run_race
from .record import Record
from .suite import Race, Reference, baseline, races
from .text import write_web_lines

WANTED = 0.95
PAIRS = Pairs(8, 8, seconds_max=20, row_s=12)
# The file that is read past the page cache is so small that eight turns take no longer.
SIZES = replace(Sizes.quick(), cold=4_096)
PHOTOGRAPHS = 300
CUSTOMIZE = """
import sys
sys.meta_path[:] = [
    finder
    for finder in sys.meta_path
    if "penstock" not in str(getattr(finder, "known_source_files", ""))
]
sys.path.insert(0, {site!r})
import penstock, penstock._core
for module in (penstock, penstock._core):
    if not module.__file__.startswith({site!r}):
        sys.exit(f"{{module.__file__}} is not the wheel's")
"""
"""Run as an interpreter starts: the editable install's finder would come first. What is raised
there is printed and forgotten, but for an exit."""


def list_races(corpora: Corpora, photographs: Path) -> list[Race]:
    """Races of penstock's contenders; the data of the README's figures are among them."""
    web = write_web_lines(corpora.folder, 100_000_000)
    values = corpora.lmdb(12_000, 20_000)
    loops = "penstock_loops"
    return [
        *races(corpora),
        make_race("lmdb", "penstock_loader", values, kind="files", batch=256),
        # Before the next but one makes the index of positions, which this would use.
        make_race("ImageFolder, four lines", loops, photographs, kind="folder", batch=64),
        make_race("R, photos, no index", loops, photographs, kind="crops", batch=1),
        make_race("R, photos, index", loops, photographs, kind="positions", batch=1),
        make_race("text", loops, web, kind="texts", batch=256, workers=2),
        make_race("index of lines", loops, web, kind="lines", batch=1),
    ]


def make_race(name: str, module: str, path: Path, **options: Any) -> Race:
    """A race over a path, warm, of one contender."""
    return Race(
        name,
        lambda: path,
        make_warm,
        lambda: baseline(module, "defaults", path=path, **options),
        (),
    )


def pair_builds(race: Race, site: Path) -> Race:
    """The same with the wheel's modules in a folder against this tree's."""
    paths = [str(site / "start"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, paths))}
    return replace(
        race,
        subject=lambda: replace(race.subject(), environment=environment),
        references=(Reference("tree", "tree", lambda: [race.subject()], WANTED),),
    )


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--photos", type=Path, help="folder of JPEG; by default synthetic ones")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these alone; no full record")
    options = parser.parse_args()
    source = options.photos or make_photographs(True)
    name = "wheel-partial" if options.only else "wheel"
    record = Record(name, 1, {"wheel": options.wheel.name, "photos": source.name})
    effort = Effort(PAIRS, PAIRS, candidates_max=1)
    with tempfile.TemporaryDirectory() as folder:
        site, photographs = Path(folder, "site"), Path(folder, "photographs")
        with zipfile.ZipFile(options.wheel) as archive:
            archive.extractall(site)
        (site / "start").mkdir()
        (site / "start" / "sitecustomize.py").write_text(CUSTOMIZE.format(site=str(site)))
        write_folders(source, photographs, PHOTOGRAPHS)
        races = list_races(Corpora(ROOT / "bench-data", SIZES, record.seed), photographs)
        names = [race.name for race in races]
        if unknown := sorted({*(options.only or ())} - {*names}):
            parser.error(f"no row {', '.join(unknown)}: there are {', '.join(names)}")
        for race in races:
            if not options.only or race.name in options.only:
                result = run_race(pair_builds(race, site), effort, frozenset(), record.seed)
                record.rows += result.rows
                record.raw[race.name] = result.raw
                record.write()
    finish(record)


if __name__ == "__main__":
    main()
