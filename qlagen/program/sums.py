"""When a matrix product may accumulate onto the rest of the sum that it stands in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from qlagen.algebra.ir import Node, depends_on, kind, linear, terms_of, transpose
from qlagen.program.dims import operands
from qlagen.program.ir import Elementwise, Gemm, Operation, Ref


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
    """``base + products[0] + ...``, one onto the other. Without a base the first product starts from zero."""

    base: Node | None
    products: tuple[Node, ...]


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
    return Accumulation(base, tuple(products))


def _in_order(products: list[Node], uses: Uses) -> list[Node]:
    """Those that are ready first come first; but a product of loads alone never starts a sum of the walk."""
    ordered = sorted(products, key=uses.depth)
    dependent = [p for p in ordered if uses.is_dependent(p)]
    free = [p for p in ordered if not uses.is_dependent(p)]
    return dependent[:1] + free + dependent[1:]


def protect_bases(operations: Iterable[Operation], kept: frozenset[str], taken: Iterable[str]) -> tuple[Operation, ...]:
    """Copies what a product accumulates onto where something reads it afterwards: accumulation overwrites it.

    `kept` are values that outlive the program's operations, `taken` names in use.
    """
    listed, names = tuple(operations), set(taken)
    result: list[Operation] = []
    for place, operation in enumerate(listed):
        if isinstance(operation, Gemm) and operation.add is not None:
            base = operation.add
            later = {name for reader in listed[place + 1 :] for name in operands(reader)} | kept
            if base in later or base in (operation.left, operation.right):
                copy = _numbered(f"{operation.name}_base", names)
                result.append(Elementwise(copy, Ref(base), operation.origin))
                operation = replace(operation, add=copy)
        result.append(operation)
    return tuple(result)


def _numbered(base: str, names: set[str]) -> str:
    name, number = base, 1
    while name in names:
        number += 1
        name = f"{base}_{number}"
    names.add(name)
    return name
