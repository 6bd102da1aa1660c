"""Expressions as a straight-line program: every matrix that is used more than once gets a name and a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qlagen.algebra.cost import GATED_PRODUCTS
from qlagen.algebra.ir import Node, kind, transpose
from qlagen.algebra.ledger import canonical, computed
from qlagen.algebra.text import show

Named = tuple[str, Node]


@dataclass(frozen=True)
class Listing:
    """Lines in an order in which each uses only names above it; the results come last."""

    lines: tuple[Named, ...]

    def names_for(self, place: int) -> dict[Node, str]:
        """Names that a line may use: those of the lines above it."""
        return {node: name for name, node in self.lines[:place]}

    def text(self) -> list[str]:
        """``name = expression`` for each line."""
        width = max((len(name) for name, _ in self.lines), default=0)
        return [f"{name:{width}s} = {show(node, self.names_for(i))}" for i, (name, node) in enumerate(self.lines)]


def make_listing(results: Iterable[Named], stages: Iterable[Named], taken: Iterable[str] = ()) -> Listing:
    """The listing of some results. `stages` are names for expressions inside; other shared matrices become T1, T2 ..,
    but for names in `taken`."""
    listed = tuple(results)
    known = {canonical(node): (name, node) for name, node in stages if node.args}
    used = _uses(node for _, node in listed)
    reserved = {*taken, *(name for name, _ in (*listed, *known.values()))}
    fresh = (name for name in (f"T{n}" for n in range(1, len(used) + len(reserved) + 2)) if name not in reserved)
    results_of = {canonical(node) for _, node in listed}
    lines: list[Named] = []
    for node in computed(node for _, node in listed):
        found = canonical(node)
        if found in known:
            lines.append(known[found])
        elif used.get(found, 0) > 1 and found not in results_of and _deserves_a_line(node):
            lines.append((next(fresh), upright(node)))
    return Listing((*lines, *listed))


def upright(node: Node) -> Node:
    """An expression or its transpose, whichever is shorter to write."""
    return min(node, transpose(node), key=lambda n: len(show(n)))


def _deserves_a_line(node: Node) -> bool:
    return kind(node) == "matrix" and node.op in ("matmul", "multiply", "add", "inverse", *GATED_PRODUCTS)


def _uses(roots: Iterable[Node]) -> Mapping[Node, int]:
    """How often each expression is an operand of another or a result."""
    listed = tuple(roots)
    found: dict[Node, int] = {}
    for node in (*listed, *(a for n in computed(listed) for a in n.args)):
        plain = canonical(node)
        found[plain] = found.get(plain, 0) + 1
    return found
