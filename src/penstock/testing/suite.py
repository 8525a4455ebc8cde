"""The base of the conformance suites: `Suite`."""

from __future__ import annotations

from typing import ClassVar


class Suite:
    """Base of the tests of a protocol.

    A direct subclass holds the tests and names its `subject`. Classes below it create the subject,
    and do nothing else. Overriding a test is a defect: the protocol means the same for all, or
    means nothing.
    """

    subject: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for suite in cls.__mro__[1:]:
            if Suite not in suite.__bases__:
                continue
            for name in dir(suite):
                if name.startswith("test_") and getattr(cls, name) is not getattr(suite, name):
                    raise TypeError(
                        f"{cls.__name__}.{name} overrides a test of {suite.__name__}: mend the"
                        f" {cls.subject}"
                    )
