"""Move numbers off accumulated results: ``s * (X + P @ N)`` becomes ``s * X + (s * P) @ N``.

A product that is accumulated onto another value cannot be scaled on its way; its operand can, in the elementwise step
that makes it anyway, and that step often does not depend on the carried state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, depends_on, kind, linear, matmul, multiply, terms_of, topological, transpose
from qlagen.algebra.walk import with_args


def place_scales(form: Form, state: str) -> Form:
    """The form with every number at its best place. Stages follow: a stage that was scaled keeps its name.

    `state` is the name of the carried value.
    """
    placing = _Placing(form, state)
    output, next_state = placing.place(form.output), placing.place(form.state)
    present = set(topological((output, next_state)))
    present |= {transpose(node) for node in present}
    stages: list[tuple[str, Node]] = []
    for name, node in form.stages:
        placed = placing.place(node)
        placed = placed if placed in present else placing.scaled.get(placed, placed)
        # A vector may occur again once scales are combined, although no expression has it on its own.
        if placed in present or kind(placed) != "matrix":
            stages.append((name, placed))
    return Form(output, next_state, tuple(stages))


class _Placing:
    def __init__(self, form: Form, state: str) -> None:
        self.state = state
        self.done: dict[Node, Node] = {}
        self.scaled: dict[Node, Node] = {}
        """What an operand became when it took a number in."""
        self.uses = count_uses((form.output, form.state))

    def place(self, node: Node) -> Node:
        found = self.done.get(node)
        if found is None:
            args = tuple(map(self.place, node.args))
            same = all(a is b for a, b in zip(args, node.args, strict=True))
            found = self.done[node] = self.local(node if same else with_args(node, args))
        return found

    def local(self, node: Node) -> Node:
        """One number, or a product of several, times a matrix product or a sum with one in it."""
        if node.op != "multiply":
            return node
        numbers = [f for f in node.args if kind(f) == "scalar"]
        others = [f for f in node.args if kind(f) != "scalar"]
        if not numbers or len(others) != 1:
            return node
        number, inner = multiply(*numbers), others[0]
        terms = terms_of(inner)
        moved = [self.into_operand(number, t) if t.op == "matmul" and c == 1 else None for c, t in terms]
        if not any(m is not None for m in moved):
            return node
        return linear((c, m or self.local(multiply(number, t))) for (c, t), m in zip(terms, moved, strict=True))

    def into_operand(self, number: Node, product: Node) -> Node | None:
        """The product with the number in the operand that an elementwise step makes anyway, if there is one.

        Not a product that something else reads too: it would be made twice.
        """
        if self.uses.get(product, 1) > 1:
            return None
        left, right = product.args
        free = [x for x in (left, right) if self.can_take(x) and self.state not in depends_on(x)]
        bound = [x for x in (left, right) if self.can_take(x) and self.uses.get(x, 1) == 1]
        if not free + bound:
            return None
        chosen = (free + bound)[0]
        self.scaled[chosen] = taken = multiply(number, chosen)
        return matmul(taken, right) if chosen is left else matmul(left, taken)

    @staticmethod
    def can_take(operand: Node) -> bool:
        return operand.op in ("multiply", "add") and not has_inverse(operand)


def has_inverse(node: Node) -> bool:
    return any(n.op == "inverse" for n in topological((node,)))


def count_uses(roots: tuple[Node, ...]) -> Mapping[Node, int]:
    """How many operations read each expression; an expression and its transpose count as one."""
    uses: Counter[Node] = Counter()
    for node in topological(roots):
        for argument in node.args:
            uses[argument] += 1
            if transpose(argument) is not argument:
                uses[transpose(argument)] += 1
    return uses
