"""Degree and coefficient size of what an expression computes, as a polynomial in its inputs and decays.

Both bound how likely a wrong form passes a random evaluation in a prime field (Schwartz 1980, Zippel 1979): a nonzero
polynomial of degree d vanishes at a random point with probability at most d / p, and vanishes altogether modulo p only
if p divides all its coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2

from qlagen.algebra.ir import Node, topological


@dataclass(frozen=True)
class Measure:
    """`degree`: total degree. `bits`: log2 of the sum of the absolute coefficients of any entry, at most."""

    degree: int
    bits: float


CONSTANT = Measure(0, 0.0)
VARIABLE = Measure(1, 0.0)


def log_sum(bits: Iterable[float]) -> float:
    """log2 of the sum of 2^b, without forming it."""
    listed = list(bits)
    top = max(listed, default=0.0)
    return top + log2(sum(2.0 ** (b - top) for b in listed)) if listed else 0.0


def measure(nodes: Iterable[Node], inputs: Mapping[str, Measure], sizes: Mapping[str, int]) -> tuple[Measure, ...]:
    """Measures of the nodes. `inputs` names those that are not plain unknowns; `sizes` has every dimension."""
    roots = tuple(nodes)
    known: dict[Node, Measure] = {}
    for node in topological(roots):
        known[node] = _node_measure(node, [known[a] for a in node.args], inputs, sizes)
    return tuple(known[root] for root in roots)


def _node_measure(node: Node, args: list[Measure], inputs: Mapping[str, Measure], sizes: Mapping[str, int]) -> Measure:
    degree = sum(a.degree for a in args)
    bits = sum(a.bits for a in args)
    if node.op == "input":
        return inputs.get(node.value, VARIABLE)
    if node.op in ("mask", "ones", "last_row"):
        return CONSTANT
    if node.op in ("from_start", "to_end", "total", "decay"):
        return Measure(sizes["C"], 0.0)  # a product of at most C decays
    if node.op in ("gdot", "gapply", "gapply_transposed"):  # the gate is no factor but at most C decays
        x, y = args[:2]
        return Measure(x.degree + y.degree + sizes["C"], x.bits + y.bits + log2(sizes[node.args[0].shape[1]]))
    if node.op == "matmul":
        return Measure(degree, bits + log2(sizes[node.args[0].shape[1]]))
    if node.op == "add":
        terms = [log2(abs(c)) + a.bits for c, a in zip(node.coefficients, args, strict=True)]
        return Measure(max((a.degree for a in args), default=0), log_sum(terms))
    if node.op in ("row_sum", "column_sum"):
        return Measure(degree, bits + log2(sizes[node.args[0].shape[1 if node.op == "row_sum" else 0]]))
    if node.op in ("following", "at_last", "head_sum"):
        return args[0]
    if node.op == "step_sum":
        return Measure(degree, bits + log2(sizes[node.args[0].shape[0]] // sizes["C"]))
    if node.op == "row_minus_column":
        return Measure(degree, bits + log2(2 * sizes[node.shape[0]]))
    if node.op == "suffix_sum":
        return Measure(degree, bits + log2(sizes[node.shape[0]]))
    if node.op == "inverse":  # entries are sums over increasing paths: products of at most C - 1 entries
        steps = sizes[node.shape[0]] - 1
        return Measure(steps * degree, steps * log_sum((0.0, bits)))
    return Measure(degree, bits)
