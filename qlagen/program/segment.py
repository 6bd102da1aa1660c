"""Whether V is a batch dimension of a walk's state: then a column of V may be anything that obeys the same map.

The state's columns must not meet, and each must be linear in the carried value and in what is loaded of V together.
A column that starts from a unit vector and loads zeros then ends as a column of the map.
"""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.program.dims import infer_dims, operands
from qlagen.program.ir import Apply, Dims, ElementExpr, Elementwise, Gemm, Load, Number, Operation, Program, Ref

VALUE = "V"


def batch_obstacle(program: Program) -> str:
    """Why V is no batch dimension of a program's values; empty when it is."""
    dims = infer_dims(program)
    for operation in program.operations:
        if not _keeps_columns_apart(operation, dims):
            return f"{operation.name} is not linear in each column of {VALUE} by itself"
    return ""


def _keeps_columns_apart(operation: Operation, dims: Mapping[str, Dims]) -> bool:
    """Columns of the result, if it has any, are linear in the same columns of what has columns."""
    wide = [name for name in operands(operation) if VALUE in dims[name]]
    result = dims[operation.name]
    if VALUE not in result:
        return not wide
    if result[1:] != (VALUE,):
        return False
    match operation:
        case Load():
            return True
        case Gemm():
            contracted = dims[operation.right][1 if operation.transpose_right else 0]
            return operation.left not in wide and contracted != VALUE
        case Elementwise():
            return _degree(operation.expr, dims) == 1
    return False


def _degree(expr: ElementExpr, dims: Mapping[str, Dims]) -> int | None:
    """How often a value with columns is a factor of every term; None when terms differ, or more often than once."""
    match expr:
        case Number():
            return 0
        case Ref():
            return int(VALUE in dims[expr.name])
        case Apply():
            left, right = _degree(expr.left, dims), _degree(expr.right, dims)
            if left is None or right is None:
                return None
            if expr.operator == "mul":
                return left + right if left + right <= 1 else None
            return left if left == right else None
