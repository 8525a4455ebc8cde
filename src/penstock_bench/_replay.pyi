"""The replay of traces, in C++."""

from typing import Annotated

import numpy
from numpy.typing import NDArray

class Replay:
    """The files of a recorded job, as its threads have them open."""

    def __init__(
        self,
        names: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        ends: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        keep_max: int,
    ) -> None: ...
    def perform(
        self,
        kind: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        file: Annotated[
            NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        offset: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        length: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        think_ns: Annotated[
            NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        paced: bool,
        due_ns: int,
        result: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        late_ns: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        duration_ns: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> tuple[int, int]:
        """
        Perform the operations of one thread in order: (number performed, time at which the last
        one was due to end). Fewer are performed only after `stop`.
        """

    def stop(self) -> None:
        """
        End the calls of `perform` on all threads after the operation under way.
        """

    @property
    def unrecorded_opens(self) -> int:
        """Files that were opened although no operation of the trace opens them."""
