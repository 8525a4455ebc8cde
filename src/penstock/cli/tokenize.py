"""`penstock tokenize`: write the tokens of texts as Megatron's files, and verify them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..convert import Tokenized
from ..convert import tokenize as tokenize_data
from ..errors import UsageError
from . import console
from .interrupt import GOES_ON, explain_interrupt
from .options import FormatOptions, Path, open_data, takes_format_options


@takes_format_options
@explain_interrupt(GOES_ON)
def tokenize(
    path: Path,
    destination: Annotated[
        str, typer.Argument(help="What to write, without .bin and .idx: /fast/documents.")
    ],
    *,
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json, or the folder that has one.")],
    field: Annotated[
        str | None, typer.Option(help="The field of text; by default text, txt or the only one.")
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(help="Token that ends a document; by default the tokenizer's own."),
    ] = None,
    no_eos: Annotated[
        bool, typer.Option("--no-eos", help="No token at the ends of documents.")
    ] = False,
    bos: Annotated[
        str | None, typer.Option(help="Token that begins a document; by default none.")
    ] = None,
    special: Annotated[
        str, typer.Option(help="Names of special tokens in texts: as text, or as tokens.")
    ] = "text",
    broken: Annotated[
        str, typer.Option(help="Broken lines and texts: raise an error, or mask them as empty.")
    ] = "raise",
    engine: Annotated[
        str, typer.Option(help="tokenizers, or tiktoken where it is proved to be equal.")
    ] = "tokenizers",
    workers: Annotated[
        int | None, typer.Option(help="Processes that encode; by default one a core.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Encode 1,000 documents again, and compare.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace other tokens of this command.")
    ] = False,
    options: FormatOptions,
) -> None:
    """Write the tokens of texts as Megatron's .bin and .idx, and verify them.

    After Ctrl-C, a full disk or the end of the machine, the same command goes on where it was.
    The files get their names when all is written and was read back.

    Examples:

      penstock tokenize documents /fast/documents --tokenizer tokenizer.json

      penstock tokenize "crawl-{00..99}.parquet" /fast/crawl --tokenizer model/ --field content

      penstock tokenize documents /fast/documents --tokenizer model/ --engine tiktoken --verify
    """
    if eos is not None and no_eos:
        raise UsageError("--eos and --no-eos are both given: choose one")
    started = time.monotonic()
    source = open_data(path, options)
    with (
        console.show_progress(f"Tokenizing into {destination}", "documents") as progress,
        console.print_warnings(),
    ):
        done = tokenize_data(
            source,
            destination,
            tokenizer,
            field=field,
            eos=not no_eos if eos is None else eos,
            bos=bos,
            special=special,  # type: ignore[arg-type]
            broken=broken,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            workers=workers,
            verify=verify,
            force=force,
            progress=progress,
        )
    _show_tokenized(done, time.monotonic() - started)


def _show_tokenized(done: Tokenized, seconds: float) -> None:
    what = (
        f"{done.tokens:,} tokens ({done.dtype}) of {done.documents:,} documents, "
        f"{console.format_bytes(done.bytes)}"
    )
    if done.empty:
        what += f"; {done.empty:,} empty, of these {done.broken:,} broken"
    if not done.written:
        how = "it was complete already"
    elif done.written < done.documents:
        how = f"went on after {done.documents - done.written:,}; read back; {seconds:.1f} s"
    else:
        how = f"read back; {seconds:.1f} s"
    if done.verified:
        how += f"; {done.verified:,} documents encoded again, all equal"
    console.show(f"[bold]{console.escape(done.path)}[/]: {what}; {how}")
    console.show(f"read it: {console.escape(done.call)}")
