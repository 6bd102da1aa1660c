"""Rewrites of one operand of several matrix products at once, for gains that no product shows alone.

A scaled operand that is shared by several products is converted to the data type once. Hoisting the scale out of one
of them gains nothing, because the others still need it; hoisting it out of all of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qlagen.algebra.ir import Node, broadcast_shape, kind, matmul, multiply, transpose
from qlagen.algebra.ledger import canonical
from qlagen.algebra.rewrite_products import unique, without

Exchange = tuple[Node, Node]
"""Before and after."""


def hoist_everywhere(products: Iterable[Node]) -> Iterator[tuple[Exchange, ...]]:
    """(s * x) @ y and z @ (s * x) -> s * (x @ y) and s * (z @ x), for all products of an operand s * x"""
    users: dict[Node, dict[Node, None]] = {}
    for product in products:
        for operand in product.args:
            users.setdefault(canonical(operand), {})[product] = None
    for operand, found in users.items():
        if operand.op == "multiply" and len(found) > 1:
            for scale in unique(operand.args):
                exchanges = tuple(e for product in found for e in _hoist(product, operand, scale))
                if len(exchanges) == len(found):
                    yield exchanges


def _hoist(product: Node, operand: Node, scale: Node) -> Iterator[Exchange]:
    """The product without the scale in its operand, if the operand occurs once and the scale is no inner one."""
    left, right = product.args
    is_left, is_right = canonical(left) is operand, canonical(right) is operand
    if is_left == is_right:
        return
    inside = left if is_left else right
    factor = scale if inside is operand else transpose(scale)
    rest = without(inside.args, factor)
    outer = "column" if is_left else "row"
    if kind(factor) in ("scalar", outer) and broadcast_shape(f.shape for f in rest) == inside.shape:
        bare = multiply(*rest)
        yield product, multiply(factor, matmul(bare, right) if is_left else matmul(left, bare))
