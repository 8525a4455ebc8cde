"""The conformance suites of penstock's protocols, for its own implementations and for yours.

    from penstock.testing import EngineSuite, write_files

    class TestMyEngine(EngineSuite):
        def make(self, contents, folder):
            return MyEngine(write_files(folder, contents))

        @contextmanager
        def held(self, contents, folder, aging):
            engine = MyEngine(write_files(folder, contents), aging=aging)
            engine.pause()
            yield engine, engine.resume

    class TestMyFormat(FormatSuite):
        def write(self, folder, counts, random):
            ...  # by the format's own library
            return Written(path, {"data": payloads})

    class TestMyPeer(PeerSuite):
        def make(self, count, timeout_s):
            return [MyPeer(node, ...) for node in range(count)]

A subclass says how to make one; overriding a test of a suite is a defect, and is refused. The
suites need pytest and hypothesis; nothing else in penstock imports them. `same_batch` needs
neither: it checks, in a training loop, that ranks have equal batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from ..loader.equal_batches import same_batch as same_batch
    from .engine import EngineSuite as EngineSuite
    from .formats import FormatSuite as FormatSuite
    from .formats import Written as Written
    from .peer import PeerSuite as PeerSuite
    from .suite import EngineRead as EngineRead
    from .suite import finish as finish
    from .suite import write_files as write_files
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "engine": "EngineSuite",
            "formats": "FormatSuite Written",
            "peer": "PeerSuite",
            "suite": "EngineRead finish write_files",
            ".loader.equal_batches": "same_batch",
        },
    )
