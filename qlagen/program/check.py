"""Is a program well formed? Every pass that makes or changes a program runs this on its result."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.program.dims import infer_dims, is_rows, operands, program_error, show_dims
from qlagen.program.ir import Dims, Load, Plan, Program, Tensor


def check_plan(plan: Plan) -> None:
    """Every program is well formed, and chunk-layout tensors are stored before they are loaded.

    Raises E-PROGRAM.
    """
    stored: dict[str, Tensor] = {}
    sizes = dict(plan.dims)
    for program in plan.programs:
        dims = check_program(program)
        for name, value in dims.items():
            if missing := [d for d in value if d not in sizes]:
                raise program_error(program, f"{name} has the dimension {missing[0]}, which has no size")
        for load in program.operations:
            if isinstance(load, Load) and load.tensor.layout == "chunk" and stored.get(load.tensor.name) != load.tensor:
                raise program_error(program, f"{load.name} loads {load.tensor.name}, which no earlier program stores")
        stored.update({s.tensor.name: s.tensor for s in program.stores if s.tensor.layout == "chunk"})


def check_program(program: Program) -> dict[str, Dims]:
    """Dimensions of every value of a well-formed program.

    Raises E-PROGRAM: shapes that do not fit, a value defined twice, used before it is defined or never used, a carry
    that changes shape, a store of something of another shape.
    """
    dims = infer_dims(program)
    _check_carry(program, dims)
    _check_tensors(program, dims)
    _check_uses(program)
    return dims


def _check_carry(program: Program, dims: Mapping[str, Dims]) -> None:
    carry = program.carry
    if carry is None:
        return
    if carry.next not in {operation.name for operation in program.operations}:
        raise program_error(program, f"the carry's next value {carry.next} is not computed")
    if dims[carry.next] != carry.dims:
        what = f"the carry {carry.name} {show_dims(carry.dims)} becomes {carry.next} {show_dims(dims[carry.next])}"
        raise program_error(program, what)


def _check_tensors(program: Program, dims: Mapping[str, Dims]) -> None:
    loads = [operation for operation in program.operations if isinstance(operation, Load)]
    if not program.stores and program.carry is None:
        raise program_error(program, "it stores nothing")
    for store in program.stores:
        if store.value not in dims:
            raise program_error(program, f"it stores {store.value}, which is not defined")
        if dims[store.value] != store.tensor.dims:
            got, wanted = show_dims(dims[store.value]), show_dims(store.tensor.dims)
            raise program_error(program, f"{store.value} {got} is stored as {store.tensor.name} {wanted}")
    tensors = [load.tensor for load in loads] + [store.tensor for store in program.stores]
    for tensor in tensors:
        if tensor.layout == "token" and not (tensor.dims and is_rows(tensor.dims[0])):
            raise program_error(program, f"{tensor.name} {show_dims(tensor.dims)} has no token axis")
        if tensor.lower and (tensor.layout != "chunk" or len(tensor.dims) != 2 or len(set(tensor.dims)) > 1):
            raise program_error(program, f"{tensor.name} {show_dims(tensor.dims)} has no triangle to be packed")
    names = [tensor.name for tensor in tensors]
    if twice := [name for name in names if names.count(name) > 1]:
        raise program_error(program, f"the tensor {twice[0]} is used by more than one load or store")


def _check_uses(program: Program) -> None:
    used = {name for operation in program.operations for name in operands(operation)}
    used |= {store.value for store in program.stores}
    if program.carry is not None:
        used.add(program.carry.next)
        if program.carry.name not in used:
            raise program_error(program, f"the carry {program.carry.name} is never used")
    for name in (*program.scalars, *(operation.name for operation in program.operations)):
        if name not in used:
            raise program_error(program, f"{name} is never used")
