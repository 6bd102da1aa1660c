"""The node of an expression, and the one table that holds every node: equal expressions are the same object.

The constructors of `qlagen.algebra.ir` put expressions into normal form; only they call `make_node`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from qlagen.spec.model import Shape

Op = Literal[
    "input",  # value = its chunk symbol (Q, K, V, beta, G, S, scale)
    "mask",  # value = "lower" (i >= j), "strict" (i > j)
    "ones",  # an array of ones: stretches a vector or number that is added to a matrix
    "last_row",  # [R, 1]: one in the last row, zeros elsewhere
    "transpose",
    "matmul",
    "multiply",
    "add",  # coefficients go with args; no args: zero
    "row_sum",  # sum over columns: [R, X] -> [R, 1]
    "column_sum",
    "row_minus_column",  # [R, R] -> [R, 1]: row sums minus column sums; the cotangent of G in exp(G_i - G_j)
    "suffix_sum",  # row i: the sum of rows i.. of a [C, n]; turns a cotangent of G into one of the log gate
    "following",  # row i: row i + 1, zero in the last; the transpose of before
    "step_sum",  # rows per step to rows per token: the sum; the transpose of each
    "at_last",  # rows per token to rows per step: at the last step, zeros elsewhere; the transpose of last
    "head_sum",  # the sum over the value heads of a key head, shape kept; of a single head it is the operand
    "gapply",  # M, y, gate: [i >= j] sum_j M_ij exp(G_ic - G_jc) y_jc; of before(G) as decay
    "gapply_transposed",  # M, x, gate: [i >= j] sum_i M_ij exp(G_ic - G_jc) x_ic
    "inverse",  # (I + L)^-1 of a strictly lower L
    "before",  # the gate G_(i-1) in row i, 0 in the first; only an operand of from_start, decay and gdot
    "from_start",  # exp(G)
    "to_end",  # exp(G_last - G)
    "total",  # exp(G_last), [1, 1] for a scalar gate
    "decay",  # [i >= j] exp(G_i - G_j); of before(G): [i > j] exp(G_(i-1) - G_j)
    "gdot",  # x, y, gate: [i >= j] sum_c x_ic y_jc exp(G_ic - G_jc); of before(G) as decay
    "each",  # rows per token to rows per step of a token: each row several times; of a gate too
    "last",  # rows per step to rows per token: that of the token's last step
]
Kind = Literal["scalar", "column", "row", "matrix"]
Term = tuple[int, "Node"]
"""A coefficient and what it multiplies."""

_KEY_LIMIT = 160


@dataclass(frozen=True, eq=False)
class Node:
    """One expression. Compare with ``is``. `key` is the canonical text: it orders commutative operands,
    so that the form does not depend on what was built before."""

    op: Op
    args: tuple[Node, ...]
    shape: Shape
    value: str = ""
    coefficients: tuple[int, ...] = ()
    key: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        """In another process too there is one node for an expression."""
        return make_node, (self.op, self.args, self.shape, self.value, self.coefficients)

    def __repr__(self) -> str:
        return f"<{self.key}: {self.shape[0]} x {self.shape[1]}>"


_nodes: dict[tuple[object, ...], Node] = {}


def make_node(
    op: Op, args: tuple[Node, ...], shape: Shape, value: str = "", coefficients: tuple[int, ...] = ()
) -> Node:
    identity = (op, tuple(map(id, args)), shape, value, coefficients)
    found = _nodes.get(identity)
    if found is None:
        found = _nodes[identity] = Node(
            op, args, shape, value, coefficients, _key(op, args, shape, value, coefficients)
        )
    return found


def _key(op: Op, args: tuple[Node, ...], shape: Shape, value: str, coefficients: tuple[int, ...]) -> str:
    """Canonical text; a long one keeps its beginning and a digest, so that keys of shared expressions stay short."""
    if not args:
        return f"{value or op}[{','.join(shape)}]"
    signs = [f"{c:+d}*" for c in coefficients] or [""] * len(args)
    parts = [f"{sign}{a.key}" for sign, a in zip(signs, args, strict=True)]
    text = f"{op}({', '.join(parts)})"
    if len(text) <= _KEY_LIMIT:
        return text
    return f"{text[: _KEY_LIMIT // 2]}..#{hashlib.sha256(text.encode()).hexdigest()[:20]}"
