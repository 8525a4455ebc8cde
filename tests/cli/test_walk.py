"""All commands, one after another: their help, their names and what their mistakes are told."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console
import typer

from penstock.cli import app, console
from penstock.cli.app import LazyGroup, arrange_help
from tests.command import run


def walk(words: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group, with the words that call it."""
    command = command or typer.main.get_group(app.app)
    yield words, command
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        loaded = command.load(name) if isinstance(command, LazyGroup) else command.commands[name]
        yield from walk((*words, name), loaded)


COMMANDS = dict(walk())
CALLED = {words: each for words, each in COMMANDS.items() if not hasattr(each, "commands")}


def read_examples(text: str) -> list[str]:
    """The lines below "Examples:" in a help."""
    return [line.strip() for line in text.partition("Examples:\n")[2].split("\n") if line.strip()]


def test_the_walk_finds_commands_in_groups() -> None:
    """Groups that import their commands, and groups that have them."""
    assert {
        ("bench", "run"),
        ("checkpoint", "prune"),
        ("trace", "import"),
        ("demo",),
    } <= CALLED.keys()


@pytest.mark.parametrize("columns", [80, 200])
def test_help_fits_the_terminal_and_has_examples_that_can_be_copied(columns: int) -> None:
    """No line is wider; examples are whole commands of penstock, whose options exist."""
    known = {
        words: {name for each in command.get_params(typer.Context(command)) for name in each.opts}
        for words, command in CALLED.items()
    }
    for words in COMMANDS:
        text = run(*words, "--help", COLUMNS=str(columns)).stdout
        assert max(map(len, text.partition("Examples:")[0].splitlines())) <= columns, words
        assert "<bool>" not in text, words
        assert "\x1b" not in text, words
        examples = read_examples(text)
        assert examples, words
        for example in examples:
            call = re.split(r" -- | \| |; ", example[example.index("penstock") :])[0].split()[1:]
            found = max((w for w in CALLED if tuple(call[: len(w)]) == w), key=len)
            assert found[: len(words)] == words or words[0] in ("formats",), example
            given = {word.partition("=")[0] for word in call if word.startswith("-")}
            assert given <= known[found], example


def test_a_help_keeps_what_looks_like_markup_in_indented_lines() -> None:
    """Lists of YAML and filters of jq are shown as they are; paragraphs are put together."""
    assert "tasks: [index, data]" in run("schedule", "--help").stdout
    assert "| jq .checkpoints[-1].step" in run("checkpoint", "list", "--help").stdout
    text, examples = arrange_help("a\nb\n\nc:\n\n  [d]\n    e\n\nExamples:\n\n  f\n\n  g\n")
    assert text == "a b\n\nc:\n[not dim][/]  \\[d]\n[not dim][/]    e"
    assert examples == ["f", "g"]


def test_no_flag_that_is_off_has_a_second_name_to_put_it_off() -> None:
    """`--no-force` would say what is so anyway."""
    for words, command in CALLED.items():
        for each in command.get_params(typer.Context(command)):
            if getattr(each, "is_flag", False) and not each.default:
                assert each.secondary_opts == [], (words, each.opts)


def test_options_are_of_one_hand() -> None:
    """What an option takes is said in capitals, its default in one place; -o is always --output,
    --json always a flag, and sizes, rates and times have no unit in their names but seconds."""
    for words, command in CALLED.items():
        for each in command.get_params(typer.Context(command)):
            named = (words, each.opts)
            is_flag = getattr(each, "is_flag", False)
            assert is_flag or re.fullmatch("[A-Z:=_]+", each.metavar), named
            assert not re.search(r"default", each.help or ""), named
            assert ("-o" in each.opts) == ("--output" in each.opts), named
            assert is_flag or "--json" not in each.opts, named
            assert not re.search(r"(?<!-per)-(s|h|mb|mb-s)$", max(each.opts, key=len)), named
            other = {"--processes", "--threads", "--out", "--html", "--csv"} & {*each.opts}
            assert not other, named


def swap(word: str) -> str:
    """A word with two letters, which differ, in each other's place."""
    middle = len(word) // 2
    middle -= word[middle - 1] == word[middle]
    return word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]


def test_a_misspelled_command_or_option_is_told_the_nearest() -> None:
    """Exit code 2, and the name that was meant, for every command and every long option."""
    for words, command in COMMANDS.items():
        if words:
            said = run(*words[:-1], swap(words[-1]), code=2).stderr
            assert f"'{words[-1]}'" in said, words
        if words in CALLED and words[-1] != "record":  # its unknown options are the job's
            for each in command.get_params(typer.Context(command)):
                option = max(each.opts, key=len)
                if option.startswith("--") and len(option) > 6:
                    typo = f"--{swap(option[2:])}"
                    if typo not in each.opts:
                        said = run(*words, typo, code=2, COLUMNS="200").stderr
                        assert option in said, (words, typo)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["bench", "run", "unet3d_h10"], "unet3d_h100"),
        (["bench", "run", "unet3d_h100", "--loader", "torhc"], "torch"),
        (["bench", "run", "unet3d_h100", "--cache", "cald"], "cold"),
        (["bench", "run", "unet3d_h100", "++workload.reader.batch_sise=3"], "reader.batch_size"),
        (["bench", "run", "jobs.yml"], "jobs.yaml"),
        (["bench", "generate", "unet3d_h100", "--part", "trian"], "train"),
        (["bench", "compare", "dat"], "data"),
        (["bench", "replay", "data/j.trac"], "data/j.trace"),
        (["simulate", "imagenet-1"], "imagenet-1k"),
        (["simulate", "s1", "--policy", "nopf"], "nopfs"),
        (["simulate", "s1", "--model", "corected"], "corrected"),
        (["simulate", "s1", "--sweep", "node"], "nodes"),
        (["plan", "openimage", "--epoch-seconds", "6"], "openimages"),
        (["schedule", "job.yaml"], "jobs.yaml"),
        (["schedule", "jobs.yaml", "--objective", "eficiency"], "efficiency"),
        (["inspect", "dta"], "data"),
        (["inspect", "data", "--format", "tre"], "tree"),
        (["inspect", "data", "--option", "labl=class"], "label"),
        (["index", "data/x.bn"], "data/x.bin"),
        (["doctor", "dataa"], "data"),
        (["lengths", "data", "--by", "byte"], "bytes"),
        (["tokenize", "data", "o", "--tokenizer", "t", "--engine", "tiktokn"], "tiktoken"),
        (["convert", "data", "o", "--to", "records "], "records"),
        (["trace", "show", "data/j.trac"], "data/j.trace"),
        (["checkpoint", "list", "dataa"], "data"),
    ],
)
def test_a_misspelled_name_or_path_is_told_the_nearest(
    arguments: list[str], meant: str, tmp_path: Path
) -> None:
    """One message, exit code 1, and what was probably meant in quotes."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").write_bytes(bytes(10))
    (tmp_path / "data" / "j.trace").write_bytes(bytes(10))
    (tmp_path / "jobs.yaml").write_text(
        "bandwidth: 1GB/s\nperiodic: [{name: a, compute_s: 1, transfer: 1GB, rate: 1GB/s}]\n"
    )
    done = run(*arguments, folder=tmp_path, code=1)
    assert re.search(rf"did you mean '?([^']*/)?{re.escape(meant)}", done.stderr), done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_json_is_one_value_and_nothing_else(tmp_path: Path) -> None:
    """What prints a table prints it as JSON, too."""
    (tmp_path / "x.bin").write_bytes(bytes(120))
    asked: list[list[object]] = [
        ["formats"],
        ["inspect", tmp_path / "x.bin", "--record-bytes", 12],
        ["doctor"],
        ["bench", "list"],
        [
            "checkpoint",
            "interval",
            "--blocked-seconds",
            2,
            "--commit-seconds",
            40,
            "--step-seconds",
            1,
            "--mtbf-hours",
            9,
        ],
    ]
    for words in asked:
        done = run(*words, "--json")
        assert json.loads(done.stdout), words
        plain = run(*words, COLUMNS="80", NO_COLOR="1").stdout
        assert plain, words
        assert "\x1b" not in plain, words
        with pytest.raises(ValueError):
            json.loads(plain)


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["index", "many"], "the same command starts again"),
        (["convert", "many", "out", "--to", "tar"], "the same command goes on after it"),
    ],
)
@pytest.mark.long
def test_ctrl_c_says_what_is_left_and_how_to_go_on(
    arguments: list[str], left: str, tmp_path: Path
) -> None:
    """Exit code 130, one line, and no traceback."""
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "x").write_bytes(b"x")
    code = (
        "import os, signal, penstock.engine.store as s\n"
        "from penstock.cli import main\n"
        "scan = s._core.scan_folder\n"
        "class Core:\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'scan_folder':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return getattr(real, name)\n"
        "real, s._core = s._core, Core()\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert done.stderr.startswith("penstock: stopped: "), done.stderr
    assert left in done.stderr
    assert "Traceback" not in done.stderr


def test_progress_fits_a_line_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long paths are cut, the pace is not; at 80 columns it takes the place of the bar."""
    for columns in (80, 200):
        terminal = rich.console.Console(
            file=io.StringIO(), force_terminal=True, width=columns, color_system=None
        )
        monkeypatch.setattr(console, "err", terminal)
        monkeypatch.setattr(console, "_QUIET_S", -1.0)
        monkeypatch.setattr(console, "_UPDATE_S", 0.0)
        with console.show_progress(f"Reading /{'folder/' * 40}", "samples") as seen:
            seen(0, 45_000)
            seen(20_000, 45_000)
            seen(45_000, 45_000)
        assert isinstance(terminal.file, io.StringIO)
        shown = terminal.file.getvalue()
        line = re.findall(r"Reading [^\r\n\x1b]*45,000 samples[^\r\n\x1b]*", shown)[-1]
        assert len(line) <= columns
        assert "…" in line
        assert re.search(r"45,000 of 45,000 samples, [\d,.]+/s", line)
        assert line.rstrip().endswith("left")


def test_ctrl_c_while_the_command_line_is_imported() -> None:
    """Exit code 130 and no traceback, as later."""
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'penstock.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from penstock.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
