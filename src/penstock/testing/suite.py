"""What the conformance suites have in common: `Suite`."""

from __future__ import annotations

from typing import ClassVar


class Suite:
    """Tests of a protocol, given by a direct subclass, which names its `subject`; below that one,
    classes say how to make the subject, and no more. To override a test is a defect: the protocol
    means the same for all, or means nothing."""

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
