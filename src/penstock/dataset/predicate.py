"""Conditions as text: "label == 'cat' and bytes > 1000", evaluated over arrays of columns.

The text is parsed by Python's `ast` and translated node by node; nothing is ever passed to `eval`.
It may hold names of columns (also of parts of structs, `meta.score`), numbers, texts, comparisons
(also chained, `in`, `not in`), `and`, `or`, `not`, `+ - * /`, `//` and `%` by a number, and
`startswith`, `endswith` and `in` of texts.
`in` also asks for a number, or the class of a name, in lists: "'cat' in labels".
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import suggest
from ..errors import UsageError

Kind = Literal["number", "text", "truth", "list"]
Array = npt.NDArray[Any]
Evaluate = Callable[[Mapping[str, Array]], Any]

_comparisons: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_arithmetic: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


ENDS_IN_NUL = "it ends in NUL, which arrays of texts drop: take it off, or select by ids or a mask"


_text_tests: dict[str, Callable[[Any, Any], Any]] = {
    "startswith": np.char.startswith,
    "endswith": np.char.endswith,
}


class _Term(NamedTuple):
    """A translated part of a condition.

    value:   the constant, if it is one.
    labels:  True if the numbers are labels: texts may name them.
    """

    kind: Kind
    evaluate: Evaluate
    value: Any = None
    labels: bool = False


class Predicate:
    """A condition on a sample's columns; called with arrays of columns, it gives a bool array.

    kinds:    of the columns there are.
    classes:  names of the labels, if they have names.
    names:    the columns that the condition names.

    Raises UsageError if the text is no such condition.
    """

    def __init__(
        self, text: str, kinds: Mapping[str, Kind], classes: tuple[str, ...] | None = None
    ) -> None:
        self.text, self._kinds, self._classes = text.strip(), kinds, classes
        self.names: set[str] = set()
        self._terms: dict[ast.expr, _Term] = {}
        self._translators: dict[type[ast.expr], Callable[[Any], _Term]] = {
            ast.Constant: lambda node: self._make_constant(node, node.value),
            ast.Name: self._name_column,
            ast.Attribute: self._name_column,
            ast.BoolOp: self._join,
            ast.UnaryOp: self._negate,
            ast.BinOp: self._compute,
            ast.Compare: self._compare_all,
            ast.Call: self._match_end,
        }
        if len(text) > limits.predicate_characters_max:
            most = limits.predicate_characters_max
            raise UsageError(f"where has {len(text):,} characters, of {most:,} at most: give ids")
        try:
            tree = ast.parse(self.text, mode="eval").body
            term = self._translate(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, UsageError):
                raise
            reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
            self._refuse(None, f'{reason}: write a condition such as "label == 3 and bytes > 1000"')
        if term.kind != "truth":
            self._refuse(tree, f"this is a {term.kind}, no condition: compare it with something")
        if not self.names:
            self._refuse(tree, f"this names no column: name one of {list_few(kinds)}")
        self._evaluate = term.evaluate

    def __call__(self, columns: Mapping[str, Array]) -> npt.NDArray[np.bool_]:
        try:
            with np.errstate(all="ignore"):
                mask: npt.NDArray[np.bool_] = self._evaluate(columns)
        except OverflowError as error:
            self._refuse(None, f"a number is beyond 64 bits ({error}): use a smaller one")
        return mask

    def _refuse(self, node: ast.AST | None, reason: str) -> NoReturn:
        source = None if node is None else ast.get_source_segment(self.text, node)
        at = "" if source is None or source == self.text else f" at {source!r}"
        raise UsageError(f"where={self.text!r:.300}{at}: {reason}") from None

    def _translate(self, node: ast.expr) -> _Term:
        if node not in self._terms:  # a chain of comparisons asks for its middle twice
            translate = self._translators.get(type(node), self._refuse_node)
            self._terms[node] = translate(node)
        return self._terms[node]

    def _refuse_node(self, node: ast.expr) -> NoReturn:
        name = type(node).__name__
        self._refuse(node, f"{name} is not part of conditions: give a function of the columns")

    def _want(self, node: ast.expr, kind: Kind) -> _Term:
        term = self._translate(node)
        if term.kind != kind:
            self._refuse(node, f"this is a {term.kind}, where a {kind} is needed: give one")
        return term

    def _make_constant(self, node: ast.expr, value: object) -> _Term:
        kinds: dict[type, Kind] = {bool: "truth", int: "number", float: "number", str: "text"}
        kind = kinds.get(type(value))
        if kind is None:
            self._refuse(node, f"{value!r} is no number and no text: use one of these")
        if isinstance(value, str) and value.endswith("\0"):
            self._refuse(node, ENDS_IN_NUL)
        return _Term(kind, lambda _: value, value)

    def _name_column(self, node: ast.expr) -> _Term:
        name = _find_dotted(node)
        if name is None:
            self._refuse_node(node)
        if name not in self._kinds:
            self._refuse(None, describe_unknown(name, self._kinds))
        self.names.add(name)
        labels = name in ("label", "labels") and self._classes is not None
        return _Term(self._kinds[name], operator.itemgetter(name), labels=labels)

    def _join(self, node: ast.BoolOp) -> _Term:
        terms = [self._want(operand, "truth") for operand in node.values]
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return _Term("truth", _reduce(join, [term.evaluate for term in terms]))

    def _negate(self, node: ast.UnaryOp) -> _Term:
        if isinstance(node.op, ast.Not):
            term = self._want(node.operand, "truth")
            return _Term("truth", lambda columns: np.logical_not(term.evaluate(columns)))
        if isinstance(node.op, ast.Invert):
            self._refuse(node, "~ is not part of conditions: use not")
        term = self._want(node.operand, "number")
        if isinstance(node.op, ast.UAdd):
            return term
        if term.value is not None:
            return self._make_constant(node, -term.value)
        return _Term("number", lambda columns: _negate_numbers(term.evaluate(columns)))

    def _compute(self, node: ast.BinOp) -> _Term:
        compute = _arithmetic.get(type(node.op))
        if compute is None:
            self._refuse(node, f"{type(node.op).__name__} is none of + - * / // %: use one of them")
        left, right = self._want(node.left, "number"), self._want(node.right, "number")
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and not right.value:
            self._refuse(node, "// and % take a number other than 0 on the right: give one")
        if left.value is not None and right.value is not None:
            try:
                return self._make_constant(node, compute(left.value, right.value))
            except (ZeroDivisionError, OverflowError) as error:
                self._refuse(node, f"{error}: correct it")
        return _Term(
            "number",
            lambda columns: _compute_numbers(
                compute, left.evaluate(columns), right.evaluate(columns)
            ),
        )

    def _compare_all(self, node: ast.Compare) -> _Term:
        operands = itertools.pairwise([node.left, *node.comparators])
        tests = [
            self._compare(node, op, *pair) for op, pair in zip(node.ops, operands, strict=True)
        ]
        return _Term("truth", _reduce(np.logical_and, tests))

    def _compare(
        self, node: ast.Compare, op: ast.cmpop, left_node: ast.expr, right_node: ast.expr
    ) -> Evaluate:
        left = self._translate(left_node)
        if isinstance(op, ast.In | ast.NotIn):
            contains = self._contain(node, left, right_node)
            if isinstance(op, ast.In):
                return contains
            return lambda columns: np.logical_not(contains(columns))
        compare = _comparisons.get(type(op))
        if compare is None:
            self._refuse(node, "is compares objects: use == or !=")
        right = self._translate(right_node)
        left, right = self._name_class(node, left, right), self._name_class(node, right, left)
        if left.kind != right.kind or left.kind == "list":
            kinds = f"a {left.kind} is compared with a {right.kind}"
            self._refuse(node, f"{kinds}: compare like kinds, or ask for a number in a list")
        if left.kind == "number":
            compare = functools.partial(_compare_numbers, compare)
        return lambda columns: compare(left.evaluate(columns), right.evaluate(columns))

    def _contain(self, node: ast.Compare, left: _Term, right_node: ast.expr) -> Evaluate:
        if not isinstance(right_node, ast.Tuple | ast.List | ast.Set):
            right = self._translate(right_node)
            if right.kind == "list":
                return self._find_in_lists(node, left, right)
            is_asked = left.kind == right.kind == "text" and left.value is not None
            if not is_asked or right.value is not None:
                self._refuse(node, "in takes a list of constants, or asks for a text in a column")
            return lambda columns: np.char.find(right.evaluate(columns), left.value) >= 0
        values = []
        for element in right_node.elts:
            term = self._name_class(node, self._translate(element), left)
            if term.value is None or term.kind != left.kind:
                reason = f"the list after in holds constants, each a {left.kind}: give one"
                self._refuse(element, reason)
            values.append(term.value)
        if not values:
            self._refuse(node, "the list after in is empty: give what to look for")
        equal = operator.eq
        if left.kind == "number":
            equal = functools.partial(_compare_numbers, operator.eq)

        def evaluate(columns: Mapping[str, Array]) -> Any:
            column = left.evaluate(columns)
            if len(values) > _values_compared:
                return _find_in(np.asarray(column), values)
            return np.logical_or.reduce([equal(column, value) for value in values])

        return evaluate

    def _find_in_lists(self, node: ast.Compare, left: _Term, right: _Term) -> Evaluate:
        """Find the samples whose lists have a number, or the class that a text names."""
        value = self._name_class(node, left, right).value
        if value is None or isinstance(value, str):
            self._refuse(node, "in asks for one number, or the name of a class, in a list")

        def evaluate(columns: Mapping[str, Any]) -> Any:
            values, offsets = right.evaluate(columns)
            matches = _compare_numbers(operator.eq, values, value)
            before = np.concatenate([[0], np.cumsum(matches)])
            return before[offsets[1:]] > before[offsets[:-1]]

        return evaluate

    def _name_class(self, node: ast.AST, term: _Term, other: _Term) -> _Term:
        """Return the number of the class that a text names, if it is compared with labels."""
        if not other.labels or term.kind != "text" or term.value is None:
            return term
        assert self._classes is not None
        if term.value not in self._classes:
            self._refuse(node, f"there is no class {describe_near(term.value, self._classes)}")
        return self._make_constant(ast.Constant(0), self._classes.index(term.value))

    def _match_end(self, node: ast.Call) -> _Term:
        test = _text_tests.get(node.func.attr) if isinstance(node.func, ast.Attribute) else None
        if test is None or len(node.args) != 1 or node.keywords:
            self._refuse_node(node)
        assert isinstance(node.func, ast.Attribute)
        column, wanted = self._want(node.func.value, "text"), self._want(node.args[0], "text")
        if wanted.value is None or column.value is not None:
            self._refuse(node, f"{node.func.attr} is asked of a column, for a text: write it so")
        return _Term("truth", lambda columns: test(column.evaluate(columns), wanted.value))


def _reduce(join: np.ufunc, conditions: Sequence[Evaluate]) -> Evaluate:
    """Join truth values, without an array of all of them."""
    if len(conditions) == 1:
        return conditions[0]
    return lambda columns: functools.reduce(join, (condition(columns) for condition in conditions))


_values_compared = 8
"""Values of a list that are compared one by one; of more a table is searched."""


def _widen(value: Any) -> Any:
    """Return numbers in 64 bits, signed where they fit, so that arithmetic is exact there."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return value
    if value.dtype.kind == "f":
        return value.astype(np.float64, copy=False)
    if value.dtype == np.uint64 and value.size and int(value.max()) >> 63:
        return value
    return value.astype(np.int64, copy=False)


def _compute_numbers(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Compute with numbers; whole ones exactly, where numpy would wrap around at 64 bits.

    OverflowError if a whole result is beyond 64 bits.
    """
    left, right = _widen(left), _widen(right)
    if compute is operator.truediv or not (_is_whole(left) and _is_whole(right)):
        return compute(left, right)
    ends = _find_ends(left), _find_ends(right)
    if compute is operator.mod:
        results = [-abs(ends[1][0]), abs(ends[1][0])]
    else:  # extremes are results of extremes
        results = [compute(one, other) for one in ends[0] for other in ends[1]]
    every = [*ends[0], *ends[1], *results]
    if min(every) >= -(1 << 63) and max(every) < 1 << 63:
        return compute(left, right)
    exact = compute(np.asarray(left, object), np.asarray(right, object))
    least, most = min(exact, default=0), max(exact, default=0)
    if least < -(1 << 63) or most >= 1 << (64 if least >= 0 else 63):
        raise OverflowError(f"{least if least < 0 and most < 1 << 63 else most} is a result")
    return exact.astype(np.int64 if most < 1 << 63 else np.uint64)


def _negate_numbers(value: Any) -> Any:
    return _compute_numbers(operator.sub, 0, value) if _is_whole(value) else -_widen(value)


def _find_ends(value: Any) -> tuple[int, int]:
    """Return the least and the largest of whole numbers."""
    if not isinstance(value, np.ndarray):
        return int(value), int(value)
    return (int(value.min()), int(value.max())) if value.size else (0, 0)


_EXACT_MAX = 1 << 53
"""The largest number up to which float64 holds all whole numbers."""


def _compare_numbers(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Compare whole numbers with fractions exactly, where numpy rounds the whole ones first.

    A fraction that is compared with a column of float32 or float16 is rounded to that.
    """
    left, right = _match_type(left, right), _match_type(right, left)
    is_whole = _is_whole(left)
    if is_whole == _is_whole(right):
        return compare(left, right)
    one, other = np.asarray(left, np.float64), np.asarray(right, np.float64)
    result = compare(one, other)
    rounded = (one == other) & (abs(one) >= _EXACT_MAX)
    if rounded.any():
        sides = (np.broadcast_to(np.asarray(side), rounded.shape) for side in (left, right))
        result[rounded] = compare(*(side[rounded].astype(object) for side in sides))
    return result


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or np.asarray(value).dtype.kind in "iu"


def _match_type(value: Any, other: Any) -> Any:
    """Return a constant as a number of the other's type, if it is one of those."""
    if isinstance(value, float) and value.is_integer() and _is_whole(other):
        return int(value)
    if isinstance(value, int) and isinstance(other, np.ndarray) and other.dtype.kind == "f":
        nearest = float(value)
        is_held = (
            abs(nearest) <= np.finfo(other.dtype).max and int(other.dtype.type(nearest)) == value
        )
        return nearest if is_held else value
    return value


def _find_in(column: Array, values: list[Any]) -> npt.NDArray[np.bool_]:
    """Tell which elements are equal to a value; in the column's dtype, for others are rounded."""
    if column.dtype.kind in "iu":
        fit = np.iinfo(column.dtype)
        whole = [int(value) for value in values if type(value) is int or float(value).is_integer()]
        values = [value for value in whole if fit.min <= value <= fit.max]
    elif column.dtype.kind == "f":
        values = [v for v in values if isinstance(_match_type(v, column), float)]
    if column.dtype.kind in "iufb":
        return np.isin(column, np.array(values, column.dtype))
    return np.isin(column, values)


def _find_dotted(node: ast.expr) -> str | None:
    """Return the name of a part of a struct, such as "meta.score", if the node is one."""
    if isinstance(node, ast.Attribute):
        owner = _find_dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def describe_unknown(name: str, names: Collection[str]) -> str:
    """Describe a name that no column has, those there are, and the nearest."""
    return f"there is no column {describe_near(name, names)}, or give columns={{{name!r}: array}}"


def describe_near(name: object, names: Collection[Any]) -> str:
    """Describe a name that is none of these, the nearest of them, and which there are."""
    return f"{name!r}{suggest(str(name), map(str, names))}: use one of {list_few(names)}"


def list_few(names: Collection[Any]) -> str:
    """List names for a message: of many the first."""
    few = [repr(name) for name in list(names)[:20]]
    return ", ".join(few) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
