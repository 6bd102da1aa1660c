"""Programs as stable text."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.program.dims import infer_dims, show_dims
from qlagen.program.ir import (
    Apply,
    Dims,
    ElementExpr,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Plan,
    Program,
    Ref,
    Rows,
    Scan,
    Tensor,
)

_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
_ALONG = {None: "", "rows": "[:, None]", "columns": "[None, :]", "all": ""}


def show_program(plan: Plan) -> str:
    """All kernels of an operator, in launch order.

    One operation a line: the value with its dimensions, how it is made, and the spec stage that it belongs to.
    """
    sizes = ", ".join(f"{name} = {size}" for name, size in plan.dims)
    count = len(plan.segment_forms)
    forms = [
        _program(form, f", form {n} of {count}" if count > 1 else "") for n, form in enumerate(plan.segment_forms, 1)
    ]
    texts = [*map(_program, plan.programs[:-1]), *forms, *map(_program, plan.programs[-1:])]
    return "\n\n".join([f"plan {plan.operator}: {sizes}", *texts]) + "\n"


def _program(program: Program, form: str = "") -> str:
    dims = infer_dims(program)
    walk = "one chunk after another" if program.carry else "chunks in parallel"
    lines = [f"program {program.name}{form}: {walk}", *_segment(program)]
    lines += [f"  scalar {name}" for name in program.scalars]
    if program.carry is not None:
        lines.append(f"  carry {program.carry.name} {show_dims(program.carry.dims)}, next {program.carry.next}")
    rows = [_operation(operation, dims) for operation in program.operations]
    width = max(len(text) for text, _ in rows)
    lines += [f"  {text:<{width}}  # {origin}" if origin else f"  {text}" for text, origin in rows]
    lines += [f"  store {_tensor(store.tensor)} = {store.value}" for store in program.stores]
    return "\n".join(lines)


def _segment(program: Program) -> list[str]:
    """What a segment's program makes, and when its map is not needed."""
    if program.segment is None:
        return []
    lines = ["  makes the state that a segment adds, and its map in K further columns of V"]
    if program.segment.bound is None:
        return [*lines, "  nothing bounds the map"]
    where = f" where {program.segment.condition}" if program.segment.condition else ""
    return [*lines, f"  the sum of total({program.segment.bound.name}) over its chunks bounds log |map|{where}"]


def _tensor(tensor: Tensor) -> str:
    kind = f"{tensor.layout} layout, {tensor.head} heads, {tensor.dtype}{', lower' if tensor.lower else ''}"
    return f"{tensor.name} {show_dims(tensor.dims)} ({kind})"


def _operation(operation: Operation, dims: Mapping[str, Dims]) -> tuple[str, str]:
    text = f"{operation.name} {show_dims(dims[operation.name])} = {_right_side(operation)}"
    return text, operation.origin


def _right_side(operation: Operation) -> str:
    match operation:
        case Load():
            return f"load {_tensor(operation.tensor)}"
        case Scan():
            return f"scan({operation.source})"
        case Gate():
            before = "_before" if operation.exclusive and operation.kind == "decay" else ""
            return f"{operation.kind}{before}({operation.source or ''})"
        case GatedDot():
            before = "_before" if operation.exclusive else ""
            return f"gdot{before}({operation.left}, {operation.right}, {operation.gate})"
        case Rows():
            return f"{operation.kind}({operation.source})"
        case Inverse():
            columns = "" if operation.columns is None else f" * {operation.columns}[None, :]"
            return f"inv_unit_lower({operation.source}){columns}"
        case Gemm():
            left = operation.left + ("^T" if operation.transpose_left else "")
            right = operation.right + ("^T" if operation.transpose_right else "")
            return ("" if operation.add is None else f"{operation.add} + ") + f"{left} @ {right}"
        case Elementwise():
            return show_expression(operation.expr)


def show_expression(expr: ElementExpr) -> str:
    """With the broadcast of a vector as an index: ``x * beta[:, None]`` scales rows."""
    match expr:
        case Ref():
            return expr.name + _ALONG[expr.along]
        case Number():
            return str(expr.value)
        case Apply():
            left, right = show_expression(expr.left), show_expression(expr.right)
            if expr.operator == "mul":
                left = f"({left})" if _is_sum(expr.left) else left
            if expr.operator != "add" and (_is_sum(expr.right) or _is_product(expr, expr.right)):
                right = f"({right})"
            return f"{left} {_SIGNS[expr.operator]} {right}"


def _is_sum(expr: ElementExpr) -> bool:
    return isinstance(expr, Apply) and expr.operator != "mul"


def _is_product(outer: Apply, expr: ElementExpr) -> bool:
    """A product on the right of a product: the text keeps the grouping."""
    return outer.operator == "mul" and isinstance(expr, Apply)
