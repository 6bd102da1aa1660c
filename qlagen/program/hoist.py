"""Which values a chunk-parallel kernel makes ahead of the walk: cumulative gates and inverses."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, depends_on, is_lower, transpose


@dataclass(frozen=True)
class Hoisted:
    """`matrices` are inverses with the elementwise factors around them; `gates` the cumulative gates that the walk
    itself reads. Both in the order in which the walk meets them."""

    matrices: tuple[Node, ...]
    gates: tuple[Node, ...]


def hoist(form: Form, state: str, gates: frozenset[str]) -> Hoisted:
    """What to make ahead: nothing that depends on the carried value `state`. `gates` names the cumulative log gates
    as the form does. Of a matrix and its transpose the lower one is made, or the one that is a stage."""
    stages = frozenset(node for _, node in form.stages)
    matrices: dict[Node, None] = {}
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node in seen:
            return
        seen.add(node)
        if is_hoistable(node, state):
            matrices[_upright(node, stages)] = None
            return
        if node.op == "input" and node.value in gates:
            found[node] = None
        for argument in node.args:
            visit(argument)

    visit(form.output)
    visit(form.state)
    return Hoisted(tuple(matrices), tuple(found))


def is_hoistable(node: Node, state: str) -> bool:
    """An inverse, its transpose, or a broadcast product with one in it, that needs inputs (and those only)."""
    square = node.shape[0] == node.shape[1] != "1"
    if not depends_on(node) or state in depends_on(node) or not square:
        return False
    return node.op == "inverse" or (
        node.op in ("multiply", "transpose") and any(is_hoistable(a, state) for a in node.args)
    )


def _upright(node: Node, stages: frozenset[Node]) -> Node:
    turned = transpose(node)
    if node in stages or turned in stages:
        return node if node in stages else turned
    return turned if is_lower(turned) and not is_lower(node) else node
