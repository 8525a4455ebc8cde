"""The site for programs that read: llms.txt, a list of pages, and llms-full.txt, their texts.

Both hold what users need: pages of the menu but for internals, and the main names of the interface.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from docsite import ROOT, api

TITLE = "penstock"
SUMMARY = (
    "Python library (Linux, C++ core) that reads training data in place: exact shuffle, exact "
    "resume on any number of ranks, 20 containers, PyTorch, JAX, Keras and their trainers."
)
RULES = """\
- `penstock.open(path)` is a Dataset, `penstock.Loader` and `penstock.torch.DataLoader` iterate it.
- A batch is a dict of fields. `for x, y in loader` needs `as_tuple=("image", "label")`.
- Ranks are found by themselves: no DistributedSampler, no set_epoch. Fix `global_batch_size=`.
- Random numbers in `decode` come from `sample["__rng__"]`, never from random, numpy or torch.
- Resume: save `loader.state_dict()` with the model; `loader.load_state_dict(...)` before iterating.
- Errors say what is wrong, the value, and what to do; they are subclasses of PenstockError.
"""
LEFT_OUT = ("Performance", "Internals", "Simulator", "Benchmark", "Python", "Commands", "Messages")
"""Parts of the menu that answer no question of somebody who writes a training program."""

MODULES = ("penstock", "penstock.torch", "penstock.images", "penstock.checkpoint")
"""Modules whose names are listed with signatures and docstrings."""


def write_files(pages: Mapping[str, str]) -> dict[str, str]:
    """The two files by name, of the pages' Markdown by page."""
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed, full = [f"# {TITLE}", "", f"> {SUMMARY}", "", RULES], [f"# {TITLE}", "", RULES]
    section = ""
    for heading, name in list_pages(menu, ""):
        text = pages[name]
        if heading != section:
            section = heading
            listed += ["", f"## {section}", ""]
        title = re.search(r"(?m)^# (.*)$", text)
        link = name.removesuffix(".md") + ".html"
        listed.append(f"- [{title[1] if title else name}]({link}): {first_sentence(text)}")
        full += [f"<!-- {link} -->", "", text.strip(), ""]
    listed += ["", "## Everything in one file", "", "- [llms-full.txt](llms-full.txt)", ""]
    return {"llms.txt": "\n".join(listed), "llms-full.txt": "\n".join([*full, *list_names(), ""])}


def list_pages(menu: list[Any], heading: str) -> Iterator[tuple[str, str]]:
    """The pages of a menu in its order, each with the heading that it is under."""
    for entry in menu:
        title, below = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if title in LEFT_OUT:
            continue
        if isinstance(below, list):
            yield from list_pages(below, f"{heading}: {title}" if heading else title)
        else:
            yield heading or "Start", below


def first_sentence(text: str) -> str:
    """The first sentence of a page's prose, without links and marks; its first heading if none."""
    blocks = re.sub(r"(?ms)^```.*?^```", "", text).split("\n\n")
    prose = [each for each in blocks if re.match(r"[A-Z`\"]", each) and len(each) > 40]
    found = prose[0] if prose else " / ".join(re.findall(r"(?m)^## (.*)$", text)[:4])
    found = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", " ".join(found.split()))
    sentence = re.match(r".*?[.?](?= |$)", found)
    return (sentence[0] if sentence else found)[:200].rstrip(":")


def list_names() -> Iterator[str]:
    """The signatures and docstrings of the main names."""
    yield "# Interface"
    for module in MODULES:
        for name in api.public_names(module):
            path = api.definition(name)
            if path is None:
                continue
            package, _, below = path.partition(".")
            found = api.load_source(package)[below]
            maker = found.members.get("__init__", found) if found.is_class else found
            parameters = [each for each in getattr(maker, "parameters", ()) if each.name != "self"]
            yield f"\n## {module}.{name.rpartition('.')[2]}\n"
            if parameters:
                yield f"```python\n{found.name}({', '.join(map(describe, parameters))})\n```\n"
            yield found.docstring.value if found.docstring else ""


def describe(parameter: Any) -> str:
    """One parameter as it is written."""
    stars = {"variadic positional": "*", "variadic keyword": "**"}
    kind = parameter.kind.value if parameter.kind else ""
    text = f"{stars.get(kind, '')}{parameter.name}"
    text += f": {parameter.annotation}" if parameter.annotation is not None else ""
    is_default = parameter.default is not None and not stars.get(kind)
    return f"{text} = {parameter.default}" if is_default else text
