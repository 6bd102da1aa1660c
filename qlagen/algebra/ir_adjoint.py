"""Expressions that only backward passes have: transposes of what forward expressions do with gates and rows."""

from __future__ import annotations

from qlagen.algebra.ir import Node, linear, split_coefficient, zero
from qlagen.algebra.node import Op, make_node
from qlagen.spec.model import Shape


def last_row(rows: str = "C") -> Node:
    """[rows, 1]: one in the last row, zeros elsewhere."""
    return make_node("last_row", (), (rows, "1"))


def row_minus_column(node: Node) -> Node:
    """Row sums minus column sums of a square matrix, [R, R] -> [R, 1].

    One operation, because what is summed over rows and over columns must be rounded alike: in a cotangent of G most of
    it cancels.
    """
    if node.shape[0] != node.shape[1]:
        raise ValueError(f"row_minus_column of {node.shape}")
    return _linear_in_first("row_minus_column", (node,), (node.shape[0], "1"))


def suffix_sum(node: Node) -> Node:
    """Row i is the sum of rows i.. of a [C, n]: the transpose of a cumulative sum."""
    return _linear_in_first("suffix_sum", (node,), node.shape)


def following(node: Node) -> Node:
    """Row i is row i + 1, the last one zero: the transpose of `before`."""
    return _linear_in_first("following", (node,), node.shape)


def step_sum(node: Node) -> Node:
    """The sum over each token's steps, [CN, n] -> [C, n]: the transpose of `each`."""
    return _linear_in_first("step_sum", (node,), ("C", node.shape[1]))


def at_last(node: Node, rows: str) -> Node:
    """Each row at its token's last step, zeros at the others, [C, n] -> [rows, n]: the transpose of `last`."""
    return _linear_in_first("at_last", (node,), (rows, node.shape[1]))


def head_sum(node: Node) -> Node:
    """The sum over the value heads that share a key head, shape kept. An evaluation of one head gives the operand."""
    return _linear_in_first("head_sum", (node,), node.shape)


def gapply(matrix: Node, columns: Node, gate: Node) -> Node:
    """[C, n] with i >= j: sum_j M_ij exp(G_ic - G_jc) y_jc; of before(G) the rows have that gate, and i > j.

    For a cotangent M of gdot(x, y, gate) it is that of x.
    """
    return _gapply("gapply", matrix, columns, gate)


def gapply_transposed(matrix: Node, rows: Node, gate: Node) -> Node:
    """[C, n] with i >= j: sum_i M_ij exp(G_ic - G_jc) x_ic; of before(G) the rows have that gate, and i > j.

    For a cotangent M of gdot(x, y, gate) it is that of y.
    """
    return _gapply("gapply_transposed", matrix, rows, gate)


def _gapply(op: Op, matrix: Node, vectors: Node, gate: Node) -> Node:
    if vectors.shape != gate.shape or matrix.shape != (gate.shape[0], gate.shape[0]):
        raise ValueError(f"{op} of {matrix.shape}, {vectors.shape} and a {gate.shape} gate")
    c, rest = split_coefficient(vectors)
    node = _linear_in_first(op, (matrix, rest, gate), vectors.shape)
    return _scaled(c, node)


def _linear_in_first(op: Op, args: tuple[Node, ...], shape: Shape) -> Node:
    """The operation with the first operand's integer coefficient outside; of zero it is zero."""
    c, rest = split_coefficient(args[0])
    if rest.op == "add" and not rest.args:
        return zero(shape)
    return _scaled(c, make_node(op, (rest, *args[1:]), shape))


def _scaled(coefficient: int, node: Node) -> Node:
    return linear(((coefficient, node),))
