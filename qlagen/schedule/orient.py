"""Which way round each value of the state role is held, so that wgmma's left operands are already in registers.

Every product X = L @ R may be made as X^T = R^T @ L^T. An accumulator is a left operand of the next product without
movement; a right operand must be in shared memory. So values that depend on the carry should be left operands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qlagen.errors import QlagenError
from qlagen.program.dims import refs, show_dims
from qlagen.program.ir import Elementwise, Gemm, Operation
from qlagen.schedule.analysis import Analysis

_THROUGH_SHARED_MEMORY = 4
"""Cost per entry of a dependent value that must be written for wgmma to read, against 1 for a load in registers."""
_MOST_CLASSES = 12


@dataclass(frozen=True)
class OrientedGemm:
    """A product as wgmma makes it: operand names, and whether each is read transposed."""

    left: str
    right: str
    transpose_left: bool
    transpose_right: bool


def oriented(gemm: Gemm, transposed: bool) -> OrientedGemm:
    """The product itself, or the product that makes its transpose."""
    if transposed:
        return OrientedGemm(gemm.right, gemm.left, not gemm.transpose_right, not gemm.transpose_left)
    return OrientedGemm(gemm.left, gemm.right, gemm.transpose_left, gemm.transpose_right)


class _Classes:
    """Values that must be held the same way round (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        root = self._parent.setdefault(name, name)
        while root != self._parent[root]:
            root = self._parent[root]
        self._parent[name] = root
        return root

    def join(self, first: str, second: str) -> None:
        self._parent[self.find(second)] = self.find(first)


def orient(analysis: Analysis) -> bool:
    """Whether the state role holds its values transposed. Raises E-ORIENT when values would need both ways, a
    dependent value would have to be a right operand, or rows are not the tiled dimension V."""
    state = [o for o in analysis.program.operations if analysis.is_dependent(o)]
    carry = analysis.program.carry
    assert carry is not None
    classes = _classes(analysis, state)
    names = list(dict.fromkeys(classes.find(name) for name in (carry.name, *(o.name for o in state))))
    if len(names) > _MOST_CLASSES:
        raise _refuse(analysis, f"{len(names)} groups of values to orient, at most {_MOST_CLASSES} are tried")
    gemms = [o for o in state if isinstance(o, Gemm)]
    picks = itertools.product((True, False), repeat=len(names))
    choices = (dict(zip(names, pick, strict=True)) for pick in picks)
    best = min(choices, key=lambda choice: _cost(analysis, gemms, classes, choice))
    _check(analysis, state, gemms, {o.name: best[classes.find(o.name)] for o in state})
    return best[classes.find(carry.name)]


def _classes(analysis: Analysis, state: Iterable[Operation]) -> _Classes:
    classes = _Classes()
    carry = analysis.program.carry
    if carry is not None:
        classes.join(carry.name, carry.next)
    for operation in state:
        classes.find(operation.name)
        if isinstance(operation, Gemm) and operation.add is not None:
            classes.join(operation.name, operation.add)
        if isinstance(operation, Elementwise):
            for ref in refs(operation.expr):
                if ref.along is None and ref.name in analysis.dependent:
                    classes.join(operation.name, ref.name)
    return classes


def _cost(analysis: Analysis, gemms: Iterable[Gemm], classes: _Classes, transposed: Mapping[str, bool]) -> int:
    cost = 0
    for gemm in gemms:
        product = oriented(gemm, transposed[classes.find(gemm.name)])
        rows, columns = analysis.shape(product.left)
        if product.left not in analysis.dependent:
            cost += rows * columns
        elif transposed[classes.find(product.left)] != product.transpose_left:
            cost += _THROUGH_SHARED_MEMORY * rows * columns
        if product.right in analysis.dependent:
            rows, columns = analysis.shape(product.right)
            cost += _THROUGH_SHARED_MEMORY * rows * columns
    return cost


def _check(
    analysis: Analysis, state: Iterable[Operation], gemms: Iterable[Gemm], transposed: Mapping[str, bool]
) -> None:
    for operation in state:
        dims = analysis.dims[operation.name]
        if len(dims) != 2 or dims[1 if transposed[operation.name] else 0] != "V":
            what = f"{operation.name} {show_dims(dims)} has no rows of V to tile over warpgroups and CTAs"
            hint = "products that contract over V, and what follows from them, cannot depend on the carried value"
            raise _refuse(analysis, what, hint)
    for gemm in gemms:
        product = oriented(gemm, transposed[gemm.name])
        if product.right in analysis.dependent:
            what = f"{gemm.name}: {product.right} depends on the carried value and would have to be a right operand"
            hint = "a right operand lies in shared memory: give the product another form, with it as the left operand"
            raise _refuse(analysis, what, hint)
        if product.left in analysis.dependent and product.transpose_left != transposed[gemm.name]:
            raise _refuse(analysis, f"{gemm.name} needs {product.left} the other way round than it is held")
    if len(set(transposed.values())) > 1:
        ways = ", ".join(f"{name}{'^T' if way else ''}" for name, way in transposed.items())
        raise _refuse(analysis, f"values would be held both ways round: {ways}")


def _refuse(analysis: Analysis, what: str, hint: str = "") -> QlagenError:
    program = analysis.program
    message = f"program {program.name} of {program.operator}: {what}"
    return QlagenError("E-ORIENT", message, hints=[hint] if hint else [])
