"""When a matrix product may accumulate onto the rest of the sum that it stands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qlagen.algebra.ir import Node, depends_on, kind, linear, terms_of, topological, transpose


class Uses:
    """Who reads what below the roots of one program; expressions in `leaves` are found ready.

    An expression and its transpose count as one.
    """

    def __init__(self, roots: tuple[Node, ...], leaves: frozenset[Node], stages: frozenset[Node], state: str) -> None:
        self.roots, self.leaves, self.stages, self.state = roots, leaves, stages, state
        self._readers: dict[Node, dict[Node, None]] = {}
        seen: set[Node] = set()
        pending = list(reversed(roots))
        while pending:
            node = pending.pop()
            if node in seen or self.is_leaf(node):
                continue
            seen.update((node, transpose(node)))
            for argument in node.args:
                self._readers.setdefault(self._canonical(argument), {})[node] = None
            pending += reversed(node.args)

    @staticmethod
    def _canonical(node: Node) -> Node:
        return min(node, transpose(node), key=lambda n: n.key)

    def readers(self, node: Node) -> Mapping[Node, None]:
        return self._readers.get(self._canonical(node), {})

    def is_leaf(self, node: Node) -> bool:
        return node in self.leaves or transpose(node) in self.leaves

    def is_stage(self, node: Node) -> bool:
        return node in self.stages or transpose(node) in self.stages

    def is_private(self, node: Node) -> bool:
        """No leaf, stage or root, and read once: it may disappear into its reader."""
        is_root = node in self.roots or transpose(node) in self.roots
        return not (is_root or self.is_leaf(node) or self.is_stage(node)) and len(self.readers(node)) <= 1

    def is_dependent(self, node: Node) -> bool:
        """It depends on the carried value."""
        return self.state in depends_on(node)

    def depth(self, node: Node) -> int:
        """Products on the longest path from the carried value."""
        if not self.is_dependent(node) or self.is_leaf(node):
            return 0
        return (node.op == "matmul") + max(map(self.depth, node.args), default=0)


@dataclass(frozen=True)
class Accumulation:
    """``base + products[0] + ...``, one onto the other. Without a base the first product starts from zero.

    With `copy_base` the base is read again by something that needs the sum, so it cannot be overwritten.
    """

    base: Node | None
    products: tuple[Node, ...]
    copy_base: bool = False


def accumulate(node: Node, uses: Uses) -> Accumulation | None:
    """How a sum is accumulated, or None when its products are added like other terms.

    Products with coefficient 1 that nothing else reads accumulate; the base is what remains of the sum, when it is a
    value of this program that lives where the products are made: not a loaded tensor, and dependent on the carried
    value if the sum is.
    """
    if kind(node) != "matrix":
        return None
    terms = terms_of(node)
    products = [t for c, t in terms if c == 1 and t.op == "matmul" and uses.is_private(t)]
    rest = [(c, t) for c, t in terms if t not in products]
    if not products or (not rest and len(products) == 1):
        return None
    products = _in_order(products, uses)
    if not rest:
        return Accumulation(None, tuple(products))
    base = linear(rest)
    is_loaded = uses.is_leaf(base) and not (base.op == "input" and base.value == uses.state)
    if is_loaded or uses.is_dependent(base) != uses.is_dependent(node) or any(t.op == "ones" for _, t in rest):
        return None
    return Accumulation(base, tuple(products), _is_read_later(base, node, uses))


def _in_order(products: list[Node], uses: Uses) -> list[Node]:
    """Those that are ready first come first; but a product of loads alone never starts a sum of the walk."""
    ordered = sorted(products, key=uses.depth)
    dependent = [p for p in ordered if uses.is_dependent(p)]
    free = [p for p in ordered if not uses.is_dependent(p)]
    return dependent[:1] + free + dependent[1:]


def _is_read_later(base: Node, node: Node, uses: Uses) -> bool:
    """Something that needs the sum, or the caller, reads the base as well."""
    if base in uses.roots or transpose(base) in uses.roots:
        return True
    return any(reader is not node and node in topological((reader,)) for reader in uses.readers(base))
