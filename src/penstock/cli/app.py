"""`penstock demo | index | lengths | inspect | doctor | formats | convert | tokenize | simulate |
plan | broker | top | bench | trace | checkpoint`.

Results go to standard output, messages to standard error. An error that penstock foresees is one
message and exit code 1; Ctrl-C is exit code 130 and leaves nothing half-written.
"""

from __future__ import annotations

import sys

from ..errors import PenstockError
from ..lazy_exports import COMPILED, explain_import_error
from .added_command import find_added_commands
from .lazy_group import make_app

app = make_app(
    """Training data from storage to accelerators: exact shuffles, explicit reads, exact resume.

    Examples:

      penstock demo

      penstock inspect /data/imagenet/train

      penstock doctor /data/imagenet/train --step-seconds 0.25 --ranks 8
    """,
    {
        "Data": {
            "inspect": "Show what a data set is: samples, sizes, labels, the state of its index. "
            "Writes nothing.",
            "index": "Find the samples of a data set and save where they are, beside the data.",
            "lengths": "Measure how long each sample of a data set is, and save that beside the "
            "index.",
            "formats": "List the formats that are read, and the options that each takes.",
            "convert": "Write a data set as tar (WebDataset), TFRecord, records or LMDB, and "
            "verify it.",
            "tokenize": "Write the tokens of texts as Megatron's .bin and .idx, and verify them.",
        },
        "Before a run": {
            "demo": "Show what penstock does: an exact shuffle, kill -9 and an exact resume, a "
            "race.",
            "doctor": "Say what will be slow, and why: storage, memory, cores, limits, settings. "
            "Writes nothing.",
        },
        "During and after": {
            "top": "Show the jobs that share this host: what each holds, brings, and waits for.",
            "broker": "Share this host's cores and storage bandwidth among the jobs on it.",
            "checkpoint": "Checkpoints: list them, verify them, remove old ones; how often to save "
            "one.",
        },
    },
    __package__,
    added=find_added_commands(),
    completion=True,
)


def main() -> None:
    """Run the command line and exit. An error that penstock foresees is one message and code 1,
    Ctrl-C is code 130."""
    try:
        app()
    except (PenstockError, ImportError) as error:
        if isinstance(error, ImportError) and error.name not in COMPILED:
            raise
        from . import console  # not needed where all goes well

        said = str(error)
        if isinstance(error, ImportError):
            said = explain_import_error(str(error.name), said)
        console.say(said)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
