"""Values of expressions in a field (see `qlagen.algebra.fields`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from qlagen.algebra.fields import Array, Field
from qlagen.algebra.ir import Node, topological


def evaluate(
    nodes: Iterable[Node],
    env: Mapping[str, Array],
    chunk: int,
    field: Field,
    *,
    sizes: Mapping[str, int] | None = None,
    stored: Collection[Node] = (),
    round_stored: Callable[[Array], Array] | None = None,
) -> list[Array]:
    """Values of the nodes, as 2-d arrays.

    `env` has a 2-d array for every input by its name: [chunk, K] and so on, a cumulative log gate as the field
    represents it. `sizes` is only needed for dimensions that no input below the nodes has. Nodes in `stored` are
    rounded by `round_stored` when made: what a kernel writes in the data type.
    """
    roots = tuple(nodes)
    values: dict[Node, Array] = {}
    evaluator = _Evaluator(env, chunk, field, {**_sizes(roots, env, chunk), **(sizes or {})})
    for node in topological(roots):
        value = evaluator.value(node, [values[a] for a in node.args])
        values[node] = round_stored(value) if round_stored is not None and node in stored else value
    return [values[root] for root in roots]


def _sizes(roots: tuple[Node, ...], env: Mapping[str, Array], chunk: int) -> dict[str, int]:
    sizes = {"C": chunk, "1": 1}
    for node in topological(roots):
        if node.op == "input":
            sizes.update(zip(node.shape, env[node.value].shape, strict=True))
    return sizes


class _Evaluator:
    def __init__(self, env: Mapping[str, Array], chunk: int, field: Field, sizes: Mapping[str, int]) -> None:
        self.env, self.chunk, self.field, self.sizes = env, chunk, field, sizes

    def value(self, node: Node, args: list[Array]) -> Array:
        field = self.field
        if node.op == "input":
            return self.env[node.value]
        if node.op in ("mask", "ones"):
            full = np.ones([self.sizes[d] for d in node.shape], dtype=field.dtype)
            return full if node.op == "ones" else np.tril(full, -1 if node.value == "strict" else 0)
        if node.op == "last_row":
            return np.eye(self.sizes[node.shape[0]], dtype=field.dtype)[:, -1:]
        if node.op == "transpose":
            return args[0].T
        if node.op == "matmul":
            return field.matmul(args[0], args[1])
        if node.op in ("multiply", "add"):
            return self._fold(node, args)
        if node.op in ("row_sum", "column_sum"):
            return field.reduce(args[0].sum(axis=1 if node.op == "row_sum" else 0, keepdims=True))
        if node.op == "row_minus_column":
            return field.reduce(args[0].sum(axis=1, keepdims=True) - args[0].sum(axis=0, keepdims=True).T)
        if node.op == "suffix_sum":
            return field.reduce(np.cumsum(args[0][::-1], axis=0)[::-1])
        if node.op == "inverse":
            return self._inverse(args[0])
        atoms = {"from_start": field.from_start, "to_end": field.to_end, "total": field.total, "decay": field.decay}
        return atoms[node.op](args[0])

    def _fold(self, node: Node, args: list[Array]) -> Array:
        result = np.zeros([self.sizes[d] for d in node.shape], dtype=self.field.dtype)
        if node.op == "add":
            for coefficient, value in zip(node.coefficients, args, strict=True):
                result = self.field.reduce(result + coefficient * value)
            return result
        result = result + 1
        for value in args:
            result = self.field.reduce(result * value)
        return result

    def _inverse(self, strict: Array) -> Array:
        """Forward substitution: it divides by nothing, so it holds in any commutative ring. Where arithmetic is exact,
        the sum of the powers of -L is the same in fewer, larger products."""
        if np.issubdtype(self.field.dtype, np.integer):
            return self._sum_of_powers(self.field.reduce(-strict))
        result = np.eye(self.chunk, dtype=self.field.dtype)
        for i in range(1, self.chunk):
            result[i : i + 1, :i] = self.field.reduce(-self.field.product(strict[i : i + 1, :i], result[:i, :i]))
        return result

    def _sum_of_powers(self, power: Array) -> Array:
        """(I + N)(I + N^2)(I + N^4).. for a nilpotent N."""
        identity = np.eye(len(power), dtype=self.field.dtype)
        result, reached = identity, 1
        while reached < len(power):
            result = self.field.product(result, identity + power)
            power, reached = self.field.product(power, power), 2 * reached
        return result
