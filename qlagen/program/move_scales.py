"""Move scales into a tensor that is handed over: ``a @ (beta * X)`` becomes ``(a * beta^T) @ X``.

The row scale of a right operand is a column scale of the left one. Where the left one is made ahead, chunks in
parallel, the scale costs a multiplication per entry there, once, instead of one per entry of X in every walk, where it
stands on the chain from one state to the next. The tensor then is another one, so every use of it must give up the
same scale: those of the walk decide, and a segment's form that cannot do so is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from qlagen.program.dims import infer_dims, operands
from qlagen.program.ir import Apply, ElementExpr, Elementwise, Gemm, Inverse, Load, Operation, Program, Ref, Tensor


@dataclass(frozen=True)
class Move:
    """The columns of `tensor` are stored multiplied by `scale`, a vector that both programs load."""

    tensor: Tensor
    scale: Tensor


def find_moves(prepare: Program, walk: Program, sizes: Mapping[str, int]) -> tuple[Move, ...]:
    """What is cheaper to scale in `prepare`, which stores, than in `walk`, which loads: fewer multiplications a chunk,
    and some of those that go wait for the carried value. At most one scale of a tensor."""
    vectors = [o.tensor for o in prepare.operations if isinstance(o, Load) and len(o.tensor.dims) == 1]
    moves: dict[Tensor, Move] = {}
    for store in prepare.stores:
        fitting = (v for v in vectors if store.tensor.dims == 2 * v.dims and store.tensor not in moves)
        for move in (Move(store.tensor, vector) for vector in fitting):
            if store_scaled(prepare, move) is not None and _saves(walk, move, sizes):
                moves[store.tensor] = move
                break
    return tuple(moves.values())


def _saves(walk: Program, move: Move, sizes: Mapping[str, int]) -> bool:
    found = _Users(walk, move)
    if not found.agree():
        return False
    dims, carry = infer_dims(walk), walk.carry
    on_chain = _dependent(walk.operations, "" if carry is None else carry.name)
    dropped = sum(prod(sizes[d] for d in dims[name]) for name in found.changed)
    added = prod(sizes[d] for d in move.tensor.dims)
    return added < dropped and not on_chain.isdisjoint(found.changed)


def _dependent(operations: Iterable[Operation], source: str) -> frozenset[str]:
    found = {source}
    for operation in operations:
        if found.intersection(operands(operation)):
            found.add(operation.name)
    return frozenset(found)


def store_scaled(prepare: Program, move: Move) -> Program | None:
    """The program that stores the tensor scaled; None where its value is read otherwise, or made by neither an inverse
    nor an elementwise operation, which scale what they make before it is rounded."""
    value = next(store.value for store in prepare.stores if store.tensor == move.tensor)
    scale = next(o.name for o in prepare.operations if isinstance(o, Load) and o.tensor == move.scale)
    read = any(value in operands(o) for o in prepare.operations)
    made = next(o for o in prepare.operations if o.name == value)
    if read or sum(store.value == value for store in prepare.stores) > 1:
        return None
    name = _fresh(f"{value}_{scale}", prepare)
    if isinstance(made, Inverse) and made.columns is None:
        scaled: Operation = replace(made, name=name, columns=scale)
    elif isinstance(made, Elementwise):
        scaled = replace(made, name=name, expr=Apply("mul", made.expr, Ref(scale, "columns")))
    else:
        return None
    operations = tuple(scaled if o is made else o for o in prepare.operations)
    stores = tuple(replace(s, value=name) if s.value == value else s for s in prepare.stores)
    return replace(prepare, operations=operations, stores=stores)


def _fresh(name: str, program: Program) -> str:
    taken = {o.name for o in program.operations} | set(program.scalars)
    while name in taken:
        name += "_"
    return name


def read_scaled(walk: Program, move: Move) -> Program | None:
    """The program that loads the tensor scaled; None when some use of it does not have the scale to give up."""
    if not any(isinstance(o, Load) and o.tensor == move.tensor for o in walk.operations):
        return walk
    found = _Users(walk, move)
    return found.without_scale() if found.agree() else None


class _Users:
    """Uses of the columns of a loaded tensor in one program; `changed`: elementwise operations without the scale."""

    def __init__(self, program: Program, move: Move) -> None:
        self.program = program
        loads = {o.tensor: o.name for o in program.operations if isinstance(o, Load)}
        self.tensor, self.scale = loads.get(move.tensor), loads.get(move.scale)
        self.leaving = {store.value for store in program.stores}
        self.leaving |= set() if program.carry is None else {program.carry.next}
        self.changed: dict[str, ElementExpr] = {}

    def agree(self) -> bool:
        return self.tensor is not None and self.scale is not None and self._give_up(self.tensor)

    def _give_up(self, name: str) -> bool:
        """Whether all that reads the columns of a value has the scale, or hands its columns on to what has it."""
        readers = self._readers(name)
        return bool(readers) and name not in self.leaving and all(self._is_scaled(o, name) for o in readers)

    def _readers(self, name: str) -> list[Operation]:
        return [o for o in self.program.operations if name in operands(o)]

    def _is_scaled(self, user: Operation, name: str) -> bool:
        if isinstance(user, Elementwise):
            if _factors(user.expr).count(Ref(name)) != 1 or operands(user).count(name) != 1:
                return False
            return self._drop(user, "columns") or self._give_up(user.name)
        if not isinstance(user, Gemm) or operands(user).count(name) != 1 or user.transpose_right or user.add == name:
            return False
        if user.left == name:
            return not user.transpose_left and self._drop_from_right(user)
        return user.add is None and self._give_up(user.name)

    def _drop_from_right(self, product: Gemm) -> bool:
        right = next((o for o in self.program.operations if o.name == product.right), None)
        alone = product.right not in self.leaving and self._readers(product.right) == [product]
        return alone and isinstance(right, Elementwise) and self._drop(right, "rows")

    def _drop(self, operation: Elementwise, along: str) -> bool:
        factors = _factors(operation.expr)
        scales = [f for f in factors if isinstance(f, Ref) and f.name == self.scale and f.along == along]
        if len(scales) != 1 or len(factors) == 1 or operation.name in self.changed:
            return False
        factors.remove(scales[0])
        result = factors[0]
        for factor in factors[1:]:
            result = Apply("mul", result, factor)
        self.changed[operation.name] = result
        return True

    def without_scale(self) -> Program:
        """Operations that would only copy a value go, and so does a load that nothing reads any more."""
        operations = list(self.program.operations)
        for name, expr in self.changed.items():
            copied = expr.name if isinstance(expr, Ref) and expr.along is None else None
            place = next(i for i, o in enumerate(operations) if o.name == name)
            if copied is None:
                operations[place] = Elementwise(name, expr, operations[place].origin)
            else:
                del operations[place]
                operations = [_renamed(o, name, copied) for o in operations]
        read = {name for o in operations for name in operands(o)}
        kept = tuple(o for o in operations if o.name != self.scale or o.name in read)
        return replace(self.program, operations=kept)


def _renamed(user: Operation, old: str, new: str) -> Operation:
    """The reader of a copy reads what was copied: only products read operands without a scale."""
    if not isinstance(user, Gemm) or old not in operands(user):
        return user
    return replace(user, right=new) if user.right == old else replace(user, left=new)


def _factors(expr: ElementExpr) -> list[ElementExpr]:
    if isinstance(expr, Apply) and expr.operator == "mul":
        return [*_factors(expr.left), *_factors(expr.right)]
    return [expr]
