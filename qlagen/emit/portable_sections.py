"""Programs as functions on all chunks at once, and one function for a step of the walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qlagen.program.dims import infer_dims, needed, operands
from qlagen.program.ir import Carry, Dims, Gate, Load, Operation, Program, Rows


@dataclass(frozen=True)
class Section:
    """A part of a program that becomes one function: what it reads, does and returns, by the program's names."""

    name: str
    program: Program
    dims: dict[str, Dims]
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    """Tensors with a slot axis."""
    scalars: tuple[str, ...]
    results: tuple[str, ...]
    stores: tuple[str, ...]
    """What the caller calls the results."""
    carry: Carry | None = None

    @property
    def needs_dtype(self) -> bool:
        return any(isinstance(operation, Gate) for operation in self.operations)

    @property
    def needs_steps(self) -> bool:
        """It goes from tokens to their steps or back."""
        return any(isinstance(operation, Rows) and operation.kind != "before" for operation in self.operations)


def split_program(program: Program) -> list[Section]:
    """A program without a carry as it is. One with a carry in two: what does not depend on it, and one step.

    Masks are no tensors of a chunk, so each part makes its own.
    """
    work: list[Operation] = [operation for operation in program.operations if not isinstance(operation, Load)]
    results = tuple(store.value for store in program.stores)
    if program.carry is None:
        stores = tuple(store.tensor.name for store in program.stores)
        return [_section(f"_{program.name}", program, work, results, stores)]
    dependent = {program.carry.name}
    for operation in work:
        if dependent.intersection(operands(operation)):
            dependent.add(operation.name)
    walked = [operation for operation in work if operation.name in dependent]
    ahead = [operation for operation in work if operation.name not in dependent]
    step = _section("_step", program, _with_masks(walked, ahead), (*results, program.carry.next), (), program.carry)
    made = tuple(operation.name for operation in ahead if operation.name in step.inputs)
    if not made:
        return [step]
    return [_section("_ahead", program, _with_masks(needed(ahead, made), ahead), made, made), step]


def _with_masks(operations: Sequence[Operation], available: Sequence[Operation]) -> list[Operation]:
    """The operations, and before them the masks among `available` that they read."""
    read = {name for operation in operations for name in operands(operation)}
    masks = [o for o in available if _is_mask(o) and o.name in read and o not in operations]
    return [*masks, *operations]


def _is_mask(operation: Operation) -> bool:
    return isinstance(operation, Gate) and operation.source is None


def _section(
    name: str,
    program: Program,
    operations: Sequence[Operation],
    results: tuple[str, ...],
    stores: tuple[str, ...],
    carry: Carry | None = None,
) -> Section:
    made = {operation.name for operation in operations}
    read = {operand for operation in operations for operand in operands(operation)} | set(results)
    before = [o.name for o in program.operations if o.name in read and o.name not in made]
    scalars = tuple(scalar for scalar in program.scalars if scalar in read)
    return Section(
        name, program, infer_dims(program), tuple(operations), tuple(before), scalars, results, stores, carry
    )
