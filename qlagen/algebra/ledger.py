"""The arithmetic of a program of expressions, and a quick forecast of what a rewrite would do to it.

Distinct expressions are billed once, with their transposes, as in `qlagen.algebra.cost`. Expressions in `saved` are in
memory already: neither they nor what is below them alone is billed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

from qlagen.algebra.cost import CostModel
from qlagen.algebra.ir import Node, transpose
from qlagen.algebra.walk import with_args

LEAVES = ("input", "mask", "ones", "last_row")


class Bill(NamedTuple):
    """Arithmetic per chunk and value head; the fields are those of `qlagen.algebra.derivation.Cost`."""

    multiply_adds: float = 0.0
    rounded: float = 0.0
    elementwise: float = 0.0
    exps: float = 0.0


@cache
def canonical(node: Node) -> Node:
    """One of an expression and its transpose, always the same of the two."""
    plain = node.args[0] if node.op == "transpose" else node
    if plain.op in LEAVES:
        return plain
    return min(plain, transpose(plain), key=lambda n: (n.op == "transpose", n.key))


class Ledger:
    """The bill of a program, kept so that the effect of a rewrite costs only what the rewrite touches."""

    def __init__(self, roots: tuple[Node, ...], model: CostModel, saved: frozenset[Node] = frozenset()) -> None:
        self.model = model
        self.saved = saved
        self.roots = roots
        self.bill = Bill()
        self.uses: dict[Node, int] = {}
        """Canonical expressions that are computed, and how many of them (or results) use each."""
        self.operand_uses: dict[Node, int] = {}
        """Operands that are converted to the data type, and how many matrix products use each."""
        change = _Change(self)
        for root in roots:
            change.use(root)
        self.uses, self.operand_uses, self.bill = change.uses, change.operand_uses, change.bill()

    def forecast(self, exchanges: Iterable[tuple[Node, Node]]) -> Bill:
        """The bill when each first becomes the second everywhere, if what uses it stays as it is otherwise."""
        change = _Change(self)
        for before, after in exchanges:
            found = canonical(before)
            count, converted = self.uses.get(found, 0), self.operand_uses.get(found, 0)
            change.use(after, count)
            change.convert(after, converted)
            change.convert(before, -converted)
            change.drop(before, count)
        return change.bill()

    def bill_of(self, roots: tuple[Node, ...]) -> Bill:
        """The bill of a program that has most expressions in common with this one, and as many results."""
        change = _Change(self)
        changed = [(old, new) for old, new in zip(self.roots, roots, strict=True) if old is not new]
        for _, new in changed:
            change.use(new)
        for old, _ in changed:
            change.drop(old)
        return change.bill()


class _Change:
    """Use counts that differ from a ledger's, and the difference in the bill."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.uses: dict[Node, int] = {}
        self.operand_uses: dict[Node, int] = {}
        self.multiply_adds = self.rounded = self.elementwise = self.exps = 0.0

    def bill(self) -> Bill:
        """The ledger's bill after the change."""
        old = self.ledger.bill
        return Bill(
            old.multiply_adds + self.multiply_adds,
            old.rounded + self.rounded,
            old.elementwise + self.elementwise,
            old.exps + self.exps,
        )

    def use(self, node: Node, count: int = 1) -> None:
        """Adds uses of an expression and, when it is new, of what it needs."""
        found = canonical(node)
        if found.op in LEAVES or found in self.ledger.saved or not count:
            return
        before = self.uses.get(found)
        before = self.ledger.uses.get(found, 0) if before is None else before
        self.uses[found] = before + count
        if before == 0:
            self._pay(found, 1)
            for argument in found.args:
                self.use(argument)

    def drop(self, node: Node, count: int = 1) -> None:
        """Takes uses away and, when none is left, those of what it needs."""
        found = canonical(node)
        if found.op in LEAVES or found in self.ledger.saved or not count:
            return
        before = self.uses.get(found)
        left = (self.ledger.uses.get(found, 0) if before is None else before) - count
        self.uses[found] = left
        if left == 0:
            self._pay(found, -1)
            for argument in found.args:
                self.drop(argument)

    def _pay(self, node: Node, sign: int) -> None:
        work = self.ledger.model.work(node)
        self.multiply_adds += sign * work.multiply_adds
        self.elementwise += sign * work.elementwise
        self.exps += sign * work.exps
        self.rounded += sign * work.rounded
        for operand in self.ledger.model.converted(node):
            self.convert(operand, sign)

    def convert(self, operand: Node, count: int) -> None:
        """Adds uses of a matrix product's operand, or takes them away."""
        plain = canonical(operand)
        if not count or plain in self.ledger.saved or self.ledger.model.is_data(plain):
            return
        known = self.operand_uses.get(plain)
        before = self.ledger.operand_uses.get(plain, 0) if known is None else known
        self.operand_uses[plain] = before + count
        if (before == 0) != (before + count == 0):
            sign = 1 if count > 0 else -1
            self.rounded += sign * self.ledger.model.rounded(plain)
            self.elementwise += sign * self.ledger.model.conversion(plain)


class Rewriter:
    """Rewrites of one program; each rebuilds only what stands above the rewritten expression."""

    def __init__(self, roots: tuple[Node, ...], saved: frozenset[Node]) -> None:
        self.roots = roots
        self.place: dict[Node, int] = {}
        """Every expression as it is written, operands first."""
        self.users: dict[Node, list[Node]] = {}
        for root in roots:
            self._visit(root, saved)

    def _visit(self, node: Node, saved: frozenset[Node]) -> None:
        if node not in self.place:
            if canonical(node) not in saved:
                for argument in node.args:
                    self._visit(argument, saved)
                    self.users.setdefault(argument, []).append(node)
            self.place[node] = len(self.place)

    def rewrite(self, exchanges: Iterable[tuple[Node, Node]]) -> tuple[Node, ...]:
        """The results with each first, and its transpose, become the second wherever they occur."""
        made: dict[Node, Node] = {}
        for before, after in exchanges:
            made |= {transpose(before): transpose(after), before: after}
        above: dict[Node, None] = {}
        stack = list(made)
        while stack:
            for user in self.users.get(stack.pop(), ()):
                if user not in above and user not in made:
                    above[user] = None
                    stack.append(user)
        for node in sorted(above, key=self.place.__getitem__):
            made[node] = with_args(node, tuple(made.get(a, a) for a in node.args))
        return tuple(made.get(root, root) for root in self.roots)


def computed(roots: Iterable[Node], saved: Collection[Node] = ()) -> tuple[Node, ...]:
    """Every expression that is computed for the roots, operands first: no leaves, nothing that is saved or only below
    what is; of an expression and its transpose the one that is met first, if it is no transpose."""
    order: dict[Node, Node] = {}

    def visit(node: Node) -> None:
        plain = node.args[0] if node.op == "transpose" else node
        found = canonical(plain)
        if plain.op not in LEAVES and found not in order and found not in saved:
            order[found] = plain
            for argument in plain.args:
                visit(argument)
            order[found] = order.pop(found)  # after its operands

    for root in roots:
        visit(root)
    return tuple(order.values())
