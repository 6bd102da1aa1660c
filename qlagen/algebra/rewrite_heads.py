"""Rewrites of sums over the value heads of a key head. Each yields what a node may become."""

from __future__ import annotations

from collections.abc import Iterator

from qlagen.algebra.facts import Facts
from qlagen.algebra.heads import per_key_head
from qlagen.algebra.ir import Node, broadcast_shape, linear, matmul, multiply, terms_of
from qlagen.algebra.ir_adjoint import head_sum
from qlagen.algebra.rewrite_products import unique, without


def sum_heads_first(node: Node, facts: Facts) -> Iterator[Node]:
    """head_sum(x @ k) -> head_sum(x) @ k, head_sum(k @ x) -> k @ head_sum(x), head_sum(k * x) -> k * head_sum(x), where
    k is the same for all of the heads"""
    if node.op != "head_sum":
        return
    inner = node.args[0]
    if inner.op == "matmul":
        left, right = inner.args
        if per_key_head(right, facts.key_inputs):
            yield matmul(head_sum(left), right)
        if per_key_head(left, facts.key_inputs):
            yield matmul(left, head_sum(right))
    if inner.op == "multiply":
        for factor in unique(inner.args):
            rest = without(inner.args, factor)
            fits = broadcast_shape(f.shape for f in rest) == inner.shape
            if fits and per_key_head(factor, facts.key_inputs):
                yield multiply(factor, head_sum(multiply(*rest)))


def distribute_head_sum(node: Node) -> Iterator[Node]:
    """head_sum(a + b) -> head_sum(a) + head_sum(b)"""
    if node.op == "head_sum" and len(terms_of(node.args[0])) > 1:
        yield linear((c, head_sum(term)) for c, term in terms_of(node.args[0]))


def merge_head_sums(node: Node) -> Iterator[Node]:
    """head_sum(a) + head_sum(b) -> head_sum(a + b)"""
    terms = terms_of(node)
    for i, (c, first) in enumerate(terms):
        for j in range(i + 1, len(terms)):
            d, second = terms[j]
            if first.op == second.op == "head_sum":
                inner = linear(((c, first.args[0]), (d, second.args[0])))
                yield linear([*(t for k, t in enumerate(terms) if k not in (i, j)), (1, head_sum(inner))])
