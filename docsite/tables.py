"""Pages of the reference that are tables of the source: limits, errors, metrics, formats, examples.

Everything is read from the code, so that a page cannot say what the code does not.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from docsite import ROOT
from docsite.commands import escape

SOURCE = ROOT / "src" / "penstock"


def write_pages() -> dict[str, str]:
    """The generated tables by page."""
    return {
        "reference/errors.md": write_errors(),
        **write_messages(),
        "reference/bounds.md": write_bounds(),
        "reference/metrics.md": write_metrics(),
        "reference/formats-and-options.md": write_formats(),
        "reference/examples.md": write_examples(),
    }


def write_bounds() -> str:
    """The constants of `penstock.limits`, each with its value and the text below it."""
    source = (SOURCE / "limits.py").read_text()
    titles = {
        number: found[1]
        for number, line in enumerate(source.splitlines(), 1)
        if (found := re.match(r"# -- (.*?) -+$", line))
    }
    nodes = ast.parse(source).body
    lines = ["# Bounds and defaults", "", "The constants of `penstock.limits`."]
    lines += ["[Limits](../limits.md) says what they mean in practice.", ""]
    shown = ""
    for node, after in zip(nodes, [*nodes[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        title = next(
            (titles[line] for line in sorted(titles, reverse=True) if line < node.lineno), ""
        )
        if title != shown:
            shown = title
            lines += ["", f"## {title.capitalize()}", "", "| name | value | |", "|---|---|---|"]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            value = ast.unparse(node.value) if node.value else ""
            lines.append(f"| `{ast.unparse(target)}` | `{value}` | {escape(after.value.value)} |")
    return "\n".join(lines) + "\n"


def write_errors() -> str:
    """The tree of exceptions with cause and remedy, from the docstring of `penstock.errors`."""
    text = ast.get_docstring(ast.parse((SOURCE / "errors.py").read_text())) or ""
    tree, _, rest = text.partition("\n\nA failed assertion")
    rows, remedies = list[str](), dict[int, str]()
    for line in tree.splitlines():
        found = re.match(r"[\s│├└─]*(\w+Error)\((.*?)\)\s+(.*)", line)
        found = found or re.match(r"[\s│├└─]*(DataError)()\s+(.*)", line)
        if found:
            cause, _, remedy = found[3].partition(": ")
            depth = line.index(found[1])
            remedies[depth] = remedy = remedy or remedies[depth - 4]
            rows.append(f"| `{found[1]}` | `{found[2]}` | {cause} | {remedy} |".replace("``", ""))
    return "\n".join(
        [
            "# Errors: cause and remedy",
            "",
            f"A failed assertion{rest}".strip().replace("exception above", "exception below"),
            "",
            "| class | is also a | cause | what to do |",
            "|---|---|---|---|",
            *rows,
            "",
            "```text",
            *tree.splitlines()[2:],
            "```",
            "",
            "The texts of each class, with calls that lead to them: [messages](messages/index.md).",
            "The classes themselves: [`penstock.errors`](python/penstock.errors.md).",
            "",
        ]
    )


def write_messages() -> dict[str, str]:
    """The messages that a test holds, a page for each class, and the list of these pages."""
    text = (ROOT / "tests" / "error_messages.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("# ")]
    rows = defaultdict(list)
    for call, error in zip(lines[::2], lines[1::2], strict=True):
        kind, _, message = error.partition(": ")
        rows[kind].append((call.removeprefix(">>> "), message))
    pages, index = {}, ["# Messages of errors", ""]
    index += ["Each call below is made by a test, which compares the message. `{d}` and `d` are a"]
    index += ["folder of the test; `...` stands for words of a library.", ""]
    index += ["| class | messages |", "|---|---|"]
    for kind, found in sorted(rows.items()):
        index.append(f"| [`{kind}`]({kind}.md) | {len(found)} |")
        lines = [f"# Messages of {kind}", ""]
        for call, message in found:
            lines += ["```text", *call.strip().splitlines(), f"{kind}: {message}", "```", ""]
        pages[f"reference/messages/{kind}.md"] = "\n".join(lines)
    return {"reference/messages/index.md": "\n".join(index) + "\n", **pages}


def write_metrics() -> str:
    """The metrics that `penstock.loader.serve` exports, from its source."""
    tree = ast.parse((SOURCE / "loader" / "prometheus.py").read_text())
    known = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    lines = ["# Metrics", "", "What `penstock.loader.serve(loader)` and `PENSTOCK_METRICS_PORT`"]
    lines += [
        "export for Prometheus. Each metric has the label `loader`; all but gauges only grow.",
        "",
    ]
    lines += ["| metric | type | what it counts |", "|---|---|---|"]
    lines += [
        f"| `penstock_{name}_total` | counter | {text} |" for name, text in known["_counts"].items()
    ]
    lines += [
        f"| `penstock_{name}_seconds_total` | counter | {text} |"
        for name, text in known["_times"].items()
    ]
    lines += [
        "| `penstock_stall_seconds` | histogram | Waiting in `next()`, until a batch was ready. |"
    ]
    lines += [
        "| `penstock_engine_NAME_total` | counter | The counter NAME of the engine, as "
        "`loader.stats()` has it; times in seconds. |"
    ]
    lines += [
        "| `penstock_engine_slab_NAME` | gauge | Of the memory that the ranks of a host share. |",
        "",
    ]
    lines += ["How to serve them: [watch a run](../how/watch-a-run.md).", ""]
    return "\n".join(lines)


def write_formats() -> str:
    """The formats that are read, and the options of each, as `penstock formats` lists them."""
    from penstock.index import FORMATS

    table = FORMATS.values() if isinstance(FORMATS, dict) else FORMATS
    lines = [
        "# Formats and their options",
        "",
        "As `penstock formats` lists them; how to open each:",
    ]
    lines += ["[formats](../formats.md).", ""]
    lines += ["| format | what | where | options of `penstock.open` |", "|---|---|---|---|"]
    for each in table:
        options = ", ".join(f"`{name}`" for name in each.options)
        lines.append(
            f"| `{each.name}` | {escape(each.summary)} | {', '.join(each.kinds)} | {options} |"
        )
    return "\n".join(lines) + "\n"


def write_examples() -> str:
    """The programs in examples/, each with its docstring and its text."""
    lines = [
        "# Examples",
        "",
        "Programs of the repository's folder `examples`; tests run them.",
        "",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines += [f"## {path.name}", "", text.split("\n\n")[0], ""]
        lines += [f"[The program](../../examples/{path.name})", ""]
    return "\n".join(lines)
