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
    nodes = topological(roots)
    evaluator = _Evaluator(env, field, {**_sizes(nodes, env, chunk), **(sizes or {})}, _gates(nodes))
    for node in nodes:
        value = evaluator.value(node, [values[a] for a in node.args])
        values[node] = round_stored(value) if round_stored is not None and node in stored else value
    return [values[root] for root in roots]


_OF_GATES = ("from_start", "to_end", "total", "decay", "gdot", "gapply", "gapply_transposed", "before")


def _gates(nodes: Iterable[Node]) -> frozenset[Node]:
    """Cumulative log gates: what gate functions take, and what their gates are made of."""
    found: set[Node] = set()
    for node in reversed(tuple(nodes)):
        if node.op in _OF_GATES or node in found:
            found.update(node.args[-1:])
    return frozenset(found)


def _sizes(nodes: Iterable[Node], env: Mapping[str, Array], chunk: int) -> dict[str, int]:
    sizes = {"C": chunk, "1": 1}
    for node in nodes:
        if node.op == "input":
            sizes.update(zip(node.shape, env[node.value].shape, strict=True))
    return sizes


class _Evaluator:
    def __init__(
        self, env: Mapping[str, Array], field: Field, sizes: Mapping[str, int], gates: frozenset[Node]
    ) -> None:
        self.env, self.field, self.sizes, self.gates = env, field, sizes, gates

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
        if node.op in ("row_sum", "column_sum", "row_minus_column", "suffix_sum"):
            return self._sum(node, args[0])
        if node.op == "inverse":
            return self._inverse(args[0])
        if node.op in ("each", "last", "step_sum", "at_last"):
            return self._steps(node, args[0])
        if node.op == "head_sum":
            return args[0]
        if node.op == "following":
            return np.concatenate([args[0][1:], np.zeros_like(args[0][:1])])
        return self._gate(node, args)

    def _sum(self, node: Node, value: Array) -> Array:
        rows, columns = (value.sum(axis=axis, keepdims=True) for axis in (1, 0))
        if node.op == "suffix_sum":
            return self.field.reduce(np.cumsum(value[::-1], axis=0)[::-1])
        if node.op == "row_minus_column":
            return self.field.reduce(rows - columns.T)
        return self.field.reduce(rows if node.op == "row_sum" else columns)

    def _gate(self, node: Node, args: list[Array]) -> Array:
        exclusive = node.args[-1].op == "before"
        match node.op:
            case "before":
                return self.field.before(args[0])
            case "from_start":
                return self.field.from_start(args[0])
            case "to_end":
                return self.field.to_end(args[0])
            case "total":
                return self.field.total(args[0])
            case "decay":
                return self.field.decay(args[0], exclusive)
            case "gdot":
                return self.field.gdot(args[0], args[1], args[2], exclusive)
            case "gapply" | "gapply_transposed":
                return self._gapply(args, exclusive, transposed=node.op == "gapply_transposed")
            case _:
                raise ValueError(f"no value of {node!r}")

    def _gapply(self, args: list[Array], exclusive: bool, transposed: bool) -> Array:
        """Channel by channel: the gate of one is that of a product with a number per row."""
        matrix, vectors, gate = args
        columns = []
        for channel in range(vectors.shape[1]):
            weights = self.field.reduce(self.field.decay(gate[:, channel : channel + 1], exclusive) * matrix)
            left = weights.T if transposed else weights
            columns.append(self.field.matmul(left, vectors[:, channel : channel + 1]))
        return np.concatenate(columns, axis=1)

    def _steps(self, node: Node, value: Array) -> Array:
        """Rows of tokens to rows of their steps, or back. A gate has a representation of its own."""
        rows = (node if node.op in ("each", "at_last") else node.args[0]).shape[0]
        steps = self.sizes[rows] // self.sizes["C"]
        if node.op == "last":
            return value[steps - 1 :: steps]
        if node.op == "step_sum":
            return self.field.reduce(value.reshape(-1, steps, value.shape[1]).sum(axis=1))
        if node.op == "at_last":
            spread = np.zeros((steps * len(value), value.shape[1]), dtype=self.field.dtype)
            spread[steps - 1 :: steps] = value
            return spread
        return self.field.each(value, steps) if node.args[0] in self.gates else np.repeat(value, steps, axis=0)

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
        result = np.eye(len(strict), dtype=self.field.dtype)
        for i in range(1, len(strict)):
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
