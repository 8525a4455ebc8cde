"""Values of files as those of a workload, and back. Pure.

Nothing is converted but what DLIO's files leave open: one device may be a list of devices, a number
of seconds is a distribution, -1 stands for the default.
"""

from __future__ import annotations

import math
from typing import Any

from .distribution import Distribution
from .document import Given
from .schema import COLUMN, DISTRIBUTIONS, ELEMENTS, Key, nearest
from .workload import Column


class Unfit(Exception):
    """What is wrong with a value."""


def read(key: Key, given: Given) -> Any:
    """What the value of a key means; raises Unfit."""
    value = given.value
    if value is None and key.default is None and key.kind not in {"deviation", "columns"}:
        return None
    if key.unset is not None and value == key.unset and not isinstance(value, bool):
        return key.default
    match key.kind:
        case "text":
            return _text(given)
        case "path":
            return _text(given).rstrip("/") or "/"
        case "texts":
            values = value if isinstance(value, list) else [given]
            return tuple(_text(each) for each in values)
        case "boolean":
            if not isinstance(value, bool):
                raise Unfit(f"expected true or false, got {_told(given)}")
            return value
        case "integer":
            return _integer(key, given)
        case "integers":
            if not isinstance(value, list):
                raise Unfit(f"expected a list of integers, got {_told(given)}")
            return tuple(_integer(key, each) for each in value)
        case "number" | "deviation":
            number = _number(key, given)
            return max(number, 0) if key.name == "checkpoint.time_between_checkpoints" else number
        case "choice":
            return choice(given, key.allowed)
        case "distribution":
            return _distribution(given)
        case "columns":
            return _columns(given)


def written(key: Key, value: Any) -> Any:
    """What files hold for a value of a workload, in types of JSON."""
    if value is None:
        return key.unset
    if isinstance(value, Distribution):
        if value.kind == "constant":
            return value.parameters[0]
        names = DISTRIBUTIONS[value.kind]
        return {"type": value.kind, **dict(zip(names, value.parameters, strict=True))}
    if key.kind == "columns":
        return [
            {"name": each.name, "dtype": each.dtype, "size": each.size, "read": each.read}
            for each in value
        ]
    return list(value) if isinstance(value, tuple) else value


def choice(given: Given, allowed: tuple[str, ...]) -> str:
    """One of those allowed. False, which YAML makes of a bare `off`, is "off" where that is one."""
    value = given.value
    if value is False and "off" in allowed:
        return "off"
    if isinstance(value, bool) and given.text.lower() not in {"true", "false"}:
        raise Unfit(f"{_told(given)}; allowed: {', '.join(allowed)}")
    if isinstance(value, str) and value in allowed:
        return value
    text = given.text or str(given.plain)
    near = nearest(text, allowed)
    raise Unfit(
        f"{text!r} is not one of {', '.join(allowed)}"
        + (f"; did you mean {near!r}?" if near else "")
    )


def _told(given: Given) -> str:
    """A value as people wrote it."""
    value = given.value
    if isinstance(value, bool):
        if given.text.lower() in {"true", "false"}:
            return given.text.lower()
        return f"YAML reads {given.text!r} as {str(value).lower()}"
    if isinstance(value, str):
        return f"string {value!r}"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else f"{value!r}"


def _text(given: Given) -> str:
    if not isinstance(given.value, str):
        raise Unfit(f"expected text, got {_told(given)}: put it into quotes")
    if "${" in given.value:
        raise Unfit(f"interpolations ({given.value}) are not read: write the value out")
    return given.value


def _rule(key: Key) -> str:
    article = "an integer" if key.kind in {"integer", "integers"} else "a number"
    if key.most < math.inf:
        return f"{article} from {key.least:g} to {key.most:.10g}"
    return article + (f" >= {key.least:g}" if key.least > -math.inf else "")


def _integer(key: Key, given: Given) -> int:
    value = given.value
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not key.least <= value <= key.most:
        raise Unfit(f"must be {_rule(key)}, got {_told(given)}")
    return int(value)


def _number(key: Key, given: Given) -> float:
    value = given.value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not key.least <= value <= key.most:
        raise Unfit(f"must be {_rule(key)}, got {_told(given)}")
    number: float = value
    return number


def _distribution(given: Given) -> Distribution:
    if not isinstance(given.value, dict):
        return Distribution.constant(_seconds("", given))
    values = dict(given.value)
    kind = "normal"
    if "type" in values:
        kind = choice(values.pop("type"), tuple(DISTRIBUTIONS))
    elif not values:
        return Distribution.constant(0.0)
    elif "mean" in values and len(values) == 1:
        return Distribution.constant(_seconds("mean ", values["mean"]))
    names = DISTRIBUTIONS[kind]
    needs = f"{kind} needs {' and '.join(names)}"
    if extra := [name for name in values if name not in names]:
        raise Unfit(f"{needs}, and not {', '.join(extra)}")
    if len(values) < len(names):
        raise Unfit(needs)
    parameters = tuple(_seconds(f"{name} ", values[name]) for name in names)
    if kind == "uniform" and parameters[0] > parameters[1]:
        raise Unfit(f"min is {parameters[0]:g}, above max, which is {parameters[1]:g}")
    return Distribution(kind, parameters)


def _seconds(name: str, given: Given) -> float:
    value = given.value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unfit(f"{name}expected seconds or a distribution, got {_told(given)}".lstrip())
    if not math.isfinite(value) or value < 0:
        raise Unfit(f"{name}must be >= 0, got {_told(given)}")
    return value


_SIZE = Key("size", "integer", least=1, default=1)
_READ = Key("read", "boolean", default=True)


def _columns(given: Given) -> tuple[Column, ...]:
    if not isinstance(given.value, list):
        raise Unfit(f"expected a list of columns, got {_told(given)}")
    found: list[Column] = []
    for each in given.value:
        if isinstance(each.value, str):
            found.append(Column(name=each.value))
            continue
        if not isinstance(each.value, dict) or "name" not in each.value:
            raise Unfit("a column needs a name, such as {name: x, dtype: float32, size: 1}")
        for name in each.value:
            if name not in COLUMN:
                near = nearest(name, COLUMN)
                known = f"did you mean {near!r}?" if near else f"use {', '.join(COLUMN)}"
                raise Unfit(f"a column has no {name!r}; {known}")
        found += _alike(each.value)
    names = [column.name for column in found]
    if twice := {name for name in names if names.count(name) > 1} if len(names) > 1 else set():
        raise Unfit(f"the column {min(twice)!r} is given twice")
    return tuple(found)


def _alike(values: dict[str, Given]) -> list[Column]:
    """The columns of one entry."""
    name = _text(values["name"])
    column = Column(
        name=name,
        dtype=choice(values["dtype"], ELEMENTS) if "dtype" in values else "float32",
        size=_integer(_SIZE, values["size"]) if "size" in values else 1,
        read=read(_READ, values["read"]) if "read" in values else True,
    )
    if "count" not in values:
        return [column]
    count = _integer(Key("count", "integer", least=1, most=100_000), values["count"])
    return [
        Column(name=f"{name}_{number}", dtype=column.dtype, size=column.size, read=column.read)
        for number in range(count)
    ]
