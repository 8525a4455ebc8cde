"""Values of the samples that the index itself holds: annotations, read once when it is made.

Boxes and classes of all images are in one file, so that no extent
of that file is a sample's. Formats of such data parse it to columns. They are saved in the sidecar,
which is mapped: a process keeps in memory what its batches take. Attributes belong to the identity
of the data, and no read of a sample touches their file again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import SidecarError, UsageError
from ..extent import Int
from .clips import ClipCut, RowSpan
from .json_fields import Column
from .layout import Boxes, Clips, Layout, Windows
from .windows import Columns, Description, FileGrids, WindowGrid

AttributeKind = Literal["numbers", "text", "json"]
_KINDS = ("numbers", "text", "json")
_DTYPES = {"text": "U", "json": "O"}
_NUMBERS = "biuf"


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """Values of one name, of all samples.

    kind:    "numbers", "text" (UTF-8), or "json" (a document of JSON, parsed when it is taken).
    shape:   of one row of numbers: (4,) of a box, () of a label.
    values:  of all samples, one after the other: (rows, *shape); bytes for "text" and "json".
    ends:    int64 (count,), where each sample's rows end; None if each sample has one.
    classes: True if the numbers are classes.
    as_dtype:  dtype in which batches have the numbers, if that is not their own. It is not saved.
    picked:  int64 (count,), whose values each sample has, if not its own; -1 for none. Not saved.
    """

    name: str
    kind: AttributeKind
    values: npt.NDArray[Any]
    ends: Int | None = None
    classes: bool = False
    as_dtype: np.dtype[Any] | None = None
    picked: Int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of what batches have; for texts and objects, the dtype of an array of them."""
        if self.kind != "numbers":
            return np.dtype(_DTYPES[self.kind])
        return self.as_dtype or self.values.dtype

    @property
    def count(self) -> int:
        """The number of samples."""
        return self._count_own() if self.picked is None else len(self.picked)

    def _count_own(self) -> int:
        return len(self.values if self.ends is None else self.ends)

    def pick(self, rows: Int) -> Attribute:
        """Return the attribute of samples that have the values of these, -1 for none."""
        if self.picked is not None:
            rows = np.where(rows < 0, rows, self.picked.take(rows))
        return replace(self, picked=rows)

    def take(self, samples: Int) -> Column:
        """Take the values of samples: a list of texts or objects, an array, or rows of numbers and
        their offsets."""
        if self.picked is not None:
            samples = self.picked.take(samples)
            if samples.min(initial=0) < 0:
                raise UsageError(f"{self.name!r} is joined to a selection, and these are not of it")
        return self._take_own(samples)

    def _take_own(self, samples: Int) -> Column:
        if self.ends is None:
            return self._convert(self.values.take(samples, axis=0))
        last = self.ends.take(samples)
        first = np.where(samples > 0, self.ends.take(np.maximum(samples - 1, 0)), 0)
        if self.kind != "numbers":
            return [
                self._read_text(begin, end)
                for begin, end in zip(first.tolist(), last.tolist(), strict=True)
            ]
        offsets = np.zeros(len(samples) + 1, np.int64)
        np.cumsum(last - first, out=offsets[1:])
        rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], last - first)
        return self._convert(self.values.take(rows, axis=0)), offsets

    def _convert(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self.as_dtype is None else values.astype(self.as_dtype)

    def _read_text(self, begin: int, end: int) -> Any:
        text = self.values[begin:end].tobytes()
        try:
            return json.loads(text) if self.kind == "json" else text.decode()
        except (ValueError, RecursionError) as error:
            what = f"attribute {self.name!r}, byte {begin:,}: {error}"
            remedy = "rebuild it with `penstock index --force` on its data"
            raise SidecarError(f"the saved index is damaged: {what}: {remedy}") from None

    def convert_integers(self, dtype: np.dtype[Any]) -> Attribute:
        """Return the attribute with whole numbers in this dtype; UsageError if one does not fit."""
        if self.kind != "numbers" or self.values.dtype.kind not in "iu":
            return self
        fit = np.iinfo(dtype)
        least, most = (int(end) for end in (self.values.min(initial=0), self.values.max(initial=0)))
        if least < fit.min or most > fit.max:
            raise UsageError(f"as_dtype is {dtype}, too narrow for {self.name!r}: use 'int64'")
        return replace(self, as_dtype=dtype)

    # -- saving --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Describe the attribute in the header of a sidecar, beside its sections."""
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.values.dtype.str,
            "shape": list(self.shape),
            "classes": self.classes,
        }

    def sections(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the columns to save; numbers as their bytes."""
        flat: npt.NDArray[Any] = np.ascontiguousarray(self.values).reshape(-1).view(np.uint8)
        columns = {f"{prefix}.values": flat}
        if self.ends is not None:
            columns[f"{prefix}.ends"] = self.ends
        if self.picked is not None:
            columns[f"{prefix}.picked"] = self.picked
        return columns

    def find_flaw(self, count: int) -> str | None:
        """Find a contradiction with the number of samples: a message, or None."""
        if self.count != count:
            return f"attribute {self.name!r} is not of {count:,} samples"
        if self.ends is not None:
            whole = int(self.ends[-1]) if count else 0
            if (np.diff(self.ends, prepend=0) < 0).any() or whole != len(self.values):
                return f"the rows of attribute {self.name!r} do not match the samples"
        return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WindowMask(Attribute):
    """Mask of the elements of windows along one axis that lie in the array, by their numbers.

    grid:    of this axis alone, or of the files and this axis.
    values:  none, of the shape of one row.
    """

    grid: WindowGrid

    @classmethod
    def make(cls, name: str, grid: WindowGrid) -> WindowMask:
        return cls(name, "numbers", np.empty((0, grid.size[-1]), bool), grid=grid)

    def _count_own(self) -> int:
        return self.grid.count

    def _take_own(self, samples: Int) -> npt.NDArray[np.bool_]:
        places = self.grid.find_origins(samples)[:, -1:] + np.arange(self.grid.size[-1])
        return (places >= 0) & (places < self.grid.find_shapes(samples)[..., -1:])

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "window": self.grid.described()}

    def sections(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        return self.grid.sections(prefix)

    def find_flaw(self, count: int) -> str | None:
        has_axis = len(self.grid.shape) == 1 + (self.grid.files is not None) and self.count == count
        return self.grid.find_flaw() if has_axis else f"{self.name!r} is not of {count:,} windows"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClipValues(Attribute):
    """Values that follow from the numbers of clips. float64: the seconds at which their frames are
    shown, or their sound begins; bool: the frames that are in the film; int64: `rate`.

    layout, field:  the clips, and the number of their field, with which they are saved.
    rate:    samples of sound in a second.
    values:  none, of the dtype and shape of one row.
    """

    layout: Layout
    field: int
    rate: int

    @classmethod
    def make(
        cls, name: str, dtype: Any, layout: Layout, field: int = 0, rate: int = 1
    ) -> ClipValues:
        shape = (0, layout.cut.frames) if isinstance(layout, Clips) else (0,)
        values = np.empty(shape, dtype)
        return cls(name, "numbers", values, layout=layout, field=field, rate=rate)

    def _count_own(self) -> int:
        return self.layout.count

    def _take_own(self, samples: Int) -> npt.NDArray[Any]:
        layout, dtype = self.layout, self.values.dtype
        if isinstance(layout, Clips) and isinstance(layout.cut, ClipCut):
            if dtype.kind == "b":
                return layout.cut.find_valid(samples)
            return layout.cut.times.find_seconds(layout.cut.find_frames(samples))
        if dtype == np.int64:
            return self._convert(np.full(len(samples), self.rate))
        assert isinstance(layout, Boxes | Windows)
        seconds: npt.NDArray[np.float64] = layout.grid.find_origins(samples)[:, 1] / self.rate
        return seconds

    def describe(self) -> Description:
        dtype = self.values.dtype.str
        return {"name": self.name, "clips_of": self.field, "dtype": dtype, "rate": self.rate}

    def sections(self, prefix: str) -> Columns:
        return {}

    def find_flaw(self, count: int) -> str | None:
        layout, dtypes = self.layout, "?d"
        if isinstance(layout, Boxes | Windows) and layout.grid.files is not None:
            dtypes = "dl"
        elif not isinstance(layout, Clips) or not isinstance(layout.cut, ClipCut):
            dtypes = ""
        is_one = self.count == count and self.values.dtype.char in dtypes and self.rate > 0
        return None if is_one else f"{self.name!r} is not of {count:,} clips"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowValues(Attribute):
    """Values of the rows around each row of a table; or a mask of those outside its episode.

    span, field:  which rows, and the number of a field of the same, with which they are saved.
    values:       of each row; none for the mask.
    """

    span: RowSpan
    field: int = 0

    @classmethod
    def make(cls, name: str, span: RowSpan, values: npt.NDArray[Any] | None = None) -> RowValues:
        return cls(name, "numbers", np.empty(0, bool) if values is None else values, span=span)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.span.offsets), *self.values.shape[1:]

    def _count_own(self) -> int:
        return self.span.count

    def _take_own(self, samples: Int) -> npt.NDArray[Any]:
        if not len(self.values):
            return self.span.find_outside(samples)
        return self._convert(self.values.take(self.span.find_rows(samples), axis=0))

    def describe(self) -> Description:
        own = {"rows": self.span.described(), "field": self.field}
        return Attribute.describe(self) | own | {"shape": list(self.values.shape[1:])}

    def find_flaw(self, count: int) -> str | None:
        is_whole = self.count == count and len(self.values) in (0, count)
        return None if is_whole else f"{self.name!r} is not of {count:,} rows"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SharedTexts(Attribute):
    """Texts that many samples share: `number`, int64 (count,), says which one each has."""

    number: Int

    def _count_own(self) -> int:
        return len(self.number)

    def _take_own(self, samples: Int) -> Column:
        return Attribute._take_own(self, self.number.take(samples))

    def sections(self, prefix: str) -> Columns:
        return Attribute.sections(self, prefix) | {f"{prefix}.number": self.number}

    def find_flaw(self, count: int) -> str | None:
        assert self.ends is not None
        if (self.number < 0).any() or (self.number >= len(self.ends)).any():
            return f"{self.name!r} has texts that are none"
        texts = Attribute(self.name, self.kind, self.values, self.ends)
        return texts.find_flaw(len(self.ends)) if self.count == count else f"{self.name!r} is short"


def rebuild_attribute(
    described: Mapping[str, Any],
    prefix: str,
    sections: Mapping[str, npt.NDArray[Any]],
    layouts: Sequence[Layout],
) -> Attribute:
    """Rebuild a saved attribute; builtin errors if it does not fit."""
    if "window" in described:
        grid = WindowGrid.rebuild(described["window"], FileGrids.rebuild(prefix, sections))
        return WindowMask.make(str(described["name"]), grid)
    if "clips_of" in described:
        field, dtype = int(described["clips_of"]), np.dtype(str(described["dtype"]))
        clips = layouts[field], field, int(described["rate"])
        return ClipValues.make(str(described["name"]), dtype, *clips)
    dtype, kind = np.dtype(str(described["dtype"])), described["kind"]
    shape = tuple(int(n) for n in described["shape"])
    ends = sections.get(f"{prefix}.ends")
    if kind not in _KINDS or dtype.kind not in _NUMBERS or min(shape, default=1) < 1:
        raise ValueError(f"an attribute of {dtype}, {kind} and {shape}")
    if (ends is not None and ends.dtype != np.int64) or (ends is None and kind != "numbers"):
        raise ValueError("ends of an attribute that are none")
    values = sections[f"{prefix}.values"].view(dtype).reshape(-1, *shape)
    if "rows" in described:
        field = int(described["field"])
        span = RowSpan.rebuild(described["rows"], f"field{field}", sections)
        return RowValues(str(described["name"]), kind, values, span=span, field=field)
    if (number := sections.get(f"{prefix}.number")) is not None:
        return SharedTexts(str(described["name"]), kind, values, ends, number=number)
    return Attribute(str(described["name"]), kind, values, ends, bool(described["classes"]))


def make_rows(
    name: str,
    rows: Sequence[Sequence[Any]],
    dtype: Any,
    shape: tuple[int, ...] = (),
    classes: bool = False,
) -> Attribute:
    """Make an attribute of numbers of which a sample has any number of rows, of one shape."""
    ends = np.cumsum([len(one) for one in rows], dtype=np.int64)
    flat = [row for one in rows for row in one]
    values = np.array(flat, dtype).reshape(-1, *shape)
    return Attribute(name, "numbers", values, ends, classes)


def make_texts(name: str, kind: AttributeKind, texts: Sequence[str]) -> Attribute:
    """Make an attribute of texts, or of documents of JSON."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return Attribute(name, kind, np.frombuffer(b"".join(encoded), np.uint8), ends)
