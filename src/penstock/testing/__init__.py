"""The conformance suites of penstock's protocols, for its own implementations and for yours.

    from penstock.testing import EngineSuite, write_files

    class TestMyEngine(EngineSuite):
        def make(self, contents, folder):
            return MyEngine(write_files(folder, contents))

        @contextmanager
        def held(self, contents, folder, patience):
            engine = MyEngine(write_files(folder, contents), patience=patience)
            engine.pause()
            yield engine, engine.resume

    class TestMyFormat(FormatSuite):
        def write(self, folder, counts, random):
            ...  # by the format's own library
            return Written(path, {"data": payloads})

    class TestMyPeer(PeerSuite):
        def make(self, count, timeout_s):
            return [MyPeer(node, ...) for node in range(count)]

    class TestMyPolicy(PolicySuite):
        def make(self):
            return MyPolicy()

A subclass says how to make one; overriding a test of a suite is a defect, and is refused. Needs
pytest and hypothesis, which nothing else of penstock imports.
"""

from __future__ import annotations

from .engine import EngineSuite
from .formats import FormatSuite, Written
from .peer import PeerSuite
from .policy import PolicySuite
from .reading import EngineRead, finish, write_files

__all__ = [
    "EngineRead",
    "EngineSuite",
    "FormatSuite",
    "PeerSuite",
    "PolicySuite",
    "Written",
    "finish",
    "write_files",
]
