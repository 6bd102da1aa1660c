"""Iterations that work on several key heads: what belongs to a key head is there once for each of them."""

from __future__ import annotations

from dataclasses import replace

from qlagen.program.dims import operands
from qlagen.program.ir import Gemm, Load, Operation
from qlagen.schedule.analysis import Analysis
from qlagen.schedule.similarity import refused


def copy_name(name: str, key: int) -> str:
    """The name of a shared value's copy for a key head of an iteration, counted from 0."""
    return name if key == 0 else f"{name}_{key}"


def for_key_heads(analysis: Analysis, keys: int) -> Analysis:
    """The analysis with the shared values copied for `keys` key heads. Raises E-HEADS where nothing is shared, or
    something else than loads and products."""
    shared = [o for o in analysis.program.operations if analysis.is_shared(o.name) and _reaches_key_head(analysis, o)]
    if not shared:
        raise refused(analysis, analysis.program.stores[0].value, "needs nothing of a key head: keys = 1 does")
    names = frozenset(o.name for o in shared)
    operations: list[Operation] = []
    for operation in analysis.program.operations:
        operations.append(operation)
        if operation.name in names:
            operations += [_copy(analysis, operation, names, key) for key in range(1, keys)]
    copies = {copy_name(name, key): name for name in names for key in range(1, keys)}
    dims = {**analysis.dims, **{copy: analysis.dims[name] for copy, name in copies.items()}}
    uses = {**analysis.uses, **{copy: tuple(o for o in operations if copy in operands(o)) for copy in copies}}
    return replace(
        analysis,
        program=replace(analysis.program, operations=tuple(operations)),
        dims=dims,
        operations={operation.name: operation for operation in operations},
        uses=uses,
    )


def _reaches_key_head(analysis: Analysis, operation: Operation) -> bool:
    if isinstance(operation, Load):
        return operation.tensor.head == "key"
    return any(
        _reaches_key_head(analysis, analysis.operations[name])
        for name in operands(operation)
        if name in analysis.operations
    )


def _copy(analysis: Analysis, operation: Operation, names: frozenset[str], key: int) -> Operation:
    name = copy_name(operation.name, key)
    if name in analysis.dims:
        raise refused(analysis, operation.name, f"cannot be copied for {key + 1} key heads: {name} has that name")
    if isinstance(operation, Load):
        return replace(operation, name=name, key=key)
    if isinstance(operation, Gemm):
        left, right = (copy_name(o, key) if o in names else o for o in (operation.left, operation.right))
        add = operation.add if operation.add not in names else copy_name(str(operation.add), key)
        return replace(operation, name=name, left=left, right=right, add=add)
    raise refused(analysis, operation.name, "is shared, but neither loaded nor a product")
