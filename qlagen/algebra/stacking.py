"""Matrix products that can run as one: products with an operand in common, whose other operands are stacked.

``K @ S`` and ``Q @ S`` are the halves of ``[K; Q] @ S``: the shared operand is read once, and a product of twice the
rows fills a tensor core better. Stacking changes no bill; kernels may do it or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from qlagen.algebra.ir import Node, depends_on, topological, transpose
from qlagen.algebra.ledger import canonical


def stacked_products(nodes: Iterable[Node], carried: str) -> tuple[tuple[Node, ...], ...]:
    """Groups of at least two products ``x @ y`` with the same y, in an order that depends on the nodes alone.

    A product belongs to one group only. Of products that need each other only the first joins; what needs the carried
    value stays apart from what does not and can be done ahead. The members are turned so that the shared operand is on
    the right.
    """
    products = [n for n in nodes if n.op == "matmul" and "1" not in n.shape]
    groups: dict[tuple[Node, bool], list[Node]] = {}
    for product in products:
        for turned in (product, transpose(product)):
            groups.setdefault((turned.args[1], carried in depends_on(turned)), []).append(turned)
    found: list[tuple[Node, ...]] = []
    taken: set[Node] = set()
    for members in sorted(groups.values(), key=len, reverse=True):
        group: list[Node] = []
        for product in members:
            if canonical(product) not in taken | set(map(canonical, group)) and _independent(product, group):
                group.append(product)
        if len(group) > 1:
            taken.update(map(canonical, group))
            found.append(tuple(group))
    return tuple(found)


def _independent(product: Node, others: Iterable[Node]) -> bool:
    """Whether none needs another one's result."""
    mine = set(map(canonical, topological((product,))))
    for other in others:
        if canonical(other) in mine or canonical(product) in map(canonical, topological((other,))):
            return False
    return True
