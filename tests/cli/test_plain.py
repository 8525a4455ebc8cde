"""`penstock` without the packages of the command line."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata

import pytest

import penstock
from penstock.cli.commands import run_plain
from penstock.doctor.doctor import PURPOSES, list_extras
from tests import ROOT, warm


def test_what_needs_no_package_runs_without_typer() -> None:
    """The version, the help and the machine; another command says what to install."""
    code = "import sys; sys.modules['typer'] = None; from penstock.cli import main; main()"

    def run(*words: str) -> tuple[int, str, str]:
        done = warm.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, lean=True
        )
        return done.returncode, done.stdout, done.stderr

    assert run("--version") == (0, f"penstock {penstock.__version__}\n", "")
    said = "penstock inspect needs typer: pip install typer (or 'penstock[cli]')\n"
    assert run("inspect", "x") == (1, "", said)


def test_the_machine_and_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    """Without data, `doctor` ends with the extras and what is missing of each."""
    assert run_plain(["doctor"], "typer") == 0
    said = capsys.readouterr().out
    assert f"penstock {penstock.__version__}" in said
    assert "io_uring" in said
    last = said.split("To install for what you want to do\n")[1]
    assert "penstock[torch]" in last
    assert "penstock demo" in (run_plain([], "typer"), capsys.readouterr().out)[1]


def test_each_extra_has_a_purpose_or_another_name() -> None:
    """An extra that is for users is shown by `doctor`, or only installs one that is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extra: dict[str, list[str]] = project["optional-dependencies"]
    hidden = {"test", "rivals", "docs"}
    others = {
        name for name, wanted in of_extra.items() if len(wanted) == 1 and "penstock[" in wanted[0]
    }
    assert set(of_extra) - hidden - others == set(PURPOSES)
    installed = {extra.name: extra for extra in list_extras()}
    assert installed["images"].missing == ()
    assert installed["images"].purpose == PURPOSES["images"]


def test_the_page_of_installing_names_each_package() -> None:
    """Packages and extras on the page are those of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    rows = [line for line in (ROOT / "docs/install.md").read_text().splitlines() if "| `" in line]
    packages = {name for row in rows for name in re.findall(r"[\w-]+", row)}
    for name in PURPOSES:
        assert name in packages
        needed = [wanted for wanted in extras[name] if not wanted.startswith("penstock[")]
        assert {re.split(r"[\[>=;]", wanted)[0] for wanted in needed} <= packages


def test_an_extra_of_an_extra_is_looked_for() -> None:
    """penstock[bench] needs what penstock[cli] does."""
    from penstock.doctor.doctor import _expand

    packages = {"bench": ["[cli]", "pyyaml"], "cli": ["typer", "rich"]}
    assert _expand("bench", packages) == {"pyyaml", "typer", "rich"}


def test_versions_are_from_one_place() -> None:
    """pyproject.toml names no version of its own."""
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not [line for line in text.splitlines() if line.startswith("version =")]
    assert metadata.version("penstock") == penstock.__version__
