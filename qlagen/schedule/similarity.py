"""Inverses whose decay comes out: (I + G o L)^-1 = G o (I + L)^-1, for a decay G_ij = exp(g_i - g_j) is a similarity.

With L = D S, D a diagonal and S a matrix that all value heads of a key head have in common, S is worked on once for the
group, and D and G are all that differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qlagen.errors import QlagenError
from qlagen.program.ir import Apply, ElementExpr, Elementwise, Gate, Inverse, Ref
from qlagen.schedule.analysis import Analysis


@dataclass(frozen=True)
class Factored:
    """The source of an inverse, strictly lower: diag(`factors`) `matrix` o decay of the log gate `gate`."""

    matrix: str
    factors: str | None
    gate: str | None


def factor(analysis: Analysis, inverse: Inverse) -> Factored:
    """The factors of an inverse's source. Raises E-HEADS where it is no such product."""
    source = analysis.operations[inverse.source]
    if not isinstance(source, Elementwise):
        raise refused(analysis, inverse.name, f"is an inverse of {source.name}, which is no elementwise product")
    matrices: list[str] = []
    rows: list[str] = []
    gates: list[str] = []
    for part in _factors(source.expr):
        gate = analysis.operations.get(part.name) if isinstance(part, Ref) else None
        if isinstance(part, Ref) and isinstance(gate, Gate) and analysis.dims[gate.name] == ("C", "C"):
            gates += [gate.source] if gate.source is not None else []
        elif isinstance(part, Ref) and part.along == "rows":
            rows.append(part.name)
        elif isinstance(part, Ref) and part.along is None and analysis.is_shared(part.name):
            matrices.append(part.name)
        else:
            what = part.name if isinstance(part, Ref) else "a sum or a number"
            raise refused(analysis, inverse.name, f"is an inverse of a product with {what}")
    if len(matrices) != 1 or len(rows) > 1 or len(gates) > 1:
        reason = f"is an inverse of a product of {len(matrices)} matrices of a key head, {len(rows)} factors of rows"
        raise refused(analysis, inverse.name, f"{reason} and {len(gates)} decays: at most one of each")
    return Factored(matrices[0], next(iter(rows), None), next(iter(gates), None))


def _factors(expr: ElementExpr) -> Iterator[ElementExpr]:
    if isinstance(expr, Apply) and expr.operator == "mul":
        yield from _factors(expr.left)
        yield from _factors(expr.right)
    else:
        yield expr


def refused(analysis: Analysis, name: str, reason: str) -> QlagenError:
    """E-HEADS: what cannot be done for several heads at once."""
    program = analysis.program
    message = f"program {program.name} of {program.operator}: {name} {reason}"
    return QlagenError("E-HEADS", message, hints=["schedule one head at a time: heads = 1"])
