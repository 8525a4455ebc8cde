"""Pages of the command line, made of the commands themselves: their help, arguments and options."""

from __future__ import annotations

import inspect
import re
from typing import Any


def write_pages() -> dict[str, str]:
    """The page of each command by name, and the list of them."""
    import typer

    from penstock.cli.app import app

    rows = ["# Reference of the command line", ""]
    rows += ["`pip install typer rich` completes `penstock`; `penstock COMMAND --help` says the"]
    rows += ["same as these pages.", "", "| command | what it does |", "|---|---|"]
    pages = {}
    group: Any = typer.main.get_group(app)
    for name in group.list_commands(None):
        summary, command = group.commands[name], group.load(name)
        rows.append(f"| [`penstock {name}`](penstock-{name}.md) | {escape(summary.help)} |")
        pages[f"reference/commands/penstock-{name}.md"] = write_page(name, command)
    exits = [
        "",
        "## Exit codes",
        "",
        "Results go to standard output, messages to standard error.",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | an error that penstock foresees: one message says what happened and what to do |",
        "| 2 | the command line is wrong |",
        "| 130 | Ctrl-C; nothing half-written is left under a final name |",
        "| 141 | the reader of the output closed it |",
        "",
    ]
    return {"reference/commands/index.md": "\n".join(rows + exits), **pages}


def write_page(name: str, command: Any) -> str:
    """The page of one command, with those below it."""
    lines = [f"# penstock {name}", "", *describe(f"penstock {name}", command)]
    for below, each in list(getattr(command, "commands", {}).items()):
        path = f"penstock {name} {below}"
        loaded = command.load(below) if hasattr(command, "load") else each
        lines += [f"## {path}", "", *describe(path, loaded)]
    return "\n".join(lines) + "\n"


def describe(path: str, command: Any) -> list[str]:
    """The lines about one command: help, examples, usage, arguments and options."""
    text, _, examples = inspect.cleandoc(command.help or "").partition("\nExamples:\n")
    lines = [unwrap(text), ""]
    if hasattr(command, "commands"):
        return lines
    import typer

    shown = [each for each in command.get_params(typer.Context(command)) if each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    names = [
        f"[{each.name.upper()}]" if not each.required else each.name.upper() for each in arguments
    ]
    lines += ["```text", " ".join([path, "[OPTIONS]", *names]), "```", ""]
    if examples:
        calls = [line.strip() for line in examples.splitlines() if line.strip()]
        lines += ["Examples:", "", "```text", *calls, "```", ""]
    if arguments:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{each.name.upper()}` | {escape(each.help)} |" for each in arguments]
        lines.append("")
    if options:
        lines += ["| option | value | by default | |", "|---|---|---|---|"]
        lines += [describe_option(each) for each in options if not each.hidden]
        lines.append("")
    return lines


def describe_option(option: Any) -> str:
    """The row of one option in the table of options."""
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    kind = "" if getattr(option, "is_flag", False) else describe_kind(option)
    default = option.show_default if isinstance(option.show_default, str) else option.default
    if callable(default) or default in (None, False, (), []):
        default = ""
    elif default is True:
        default = "on"
    return f"| {names} | {kind} | {escape(str(default))} | {escape(option.help or '')} |"


def describe_kind(option: Any) -> str:
    """What an option takes, with its bounds."""
    least = getattr(option, "min", None)
    parts = [option.metavar] + ["repeatable"] * option.multiple
    return ", ".join(parts + ([] if least is None else [f"from {least}"]))


def escape(text: str) -> str:
    """Text for one cell of a table."""
    return unwrap(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def unwrap(text: str) -> str:
    """Paragraphs of a docstring as they are, without marks of the terminal."""
    text = re.sub(r"\[/?(?:bold|dim|green|cyan|yellow|red)?\]", "", text)
    return text.replace("\b\n", "").strip()
