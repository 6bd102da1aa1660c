"""The rule table: every rewrite the derivation may use, and where a rule applies in a form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qlagen.algebra import rewrite_gates as gates
from qlagen.algebra import rewrite_heads as heads
from qlagen.algebra import rewrite_products as products
from qlagen.algebra import rewrite_sums as sums
from qlagen.algebra.derivation import Refusal
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import Node, topological
from qlagen.algebra.rewrite_operands import hoist_everywhere
from qlagen.algebra.text import show

Rewrite = Callable[[Node, Facts], Iterator[Node]]


@dataclass(frozen=True)
class Rule:
    """A rewrite of one expression by others that are equal to it.

    `pattern` says before -> after. `refuse` gives the reason where the rule matches but its `requires` is not granted.
    """

    name: str
    pattern: str
    rewrite: Rewrite
    requires: str = ""
    refuse: Callable[[Node, Facts], Iterator[str]] | None = None


def _plain(name: str, rewrite: Callable[[Node], Iterator[Node]]) -> Rule:
    """A rule without a prerequisite; its pattern is the rewrite's docstring."""
    return Rule(name, rewrite.__doc__ or "", lambda node, facts: rewrite(node))


RULES: tuple[Rule, ...] = (
    # (a @ b) @ c -> a @ (b @ c), and back
    _plain("associate", products.associate),
    # (s * x) @ y -> s * (x @ y)
    _plain("hoist scale", products.hoist_scale),
    # s * (x @ y) -> (s * x) @ y
    _plain("push scale", products.push_scale),
    # (x * s) @ y -> x @ (s^T * y), and back
    _plain("slide scale", products.slide_scale),
    # x @ (a + b) -> x @ a + x @ b
    _plain("distribute", products.distribute),
    # x @ a + x @ b -> x @ (a + b)
    _plain("factor left", products.factor_left),
    # a @ y + b @ y -> (a + b) @ y
    _plain("factor right", products.factor_right),
    # s * a + s * b -> s * (a + b)
    _plain("factor scale", products.factor_scale),
    # row_sum(x * (a @ b)) -> row_sum(a * (x @ b^T)), and so for columns
    _plain("swap trace", sums.swap_trace),
    # row_sum(s * x) -> s * row_sum(x)
    _plain("hoist from sum", sums.hoist_from_sum),
    # s * row_sum(x) -> row_sum(s * x)
    _plain("push into sum", sums.push_into_sum),
    # row_sum(a + b) -> row_sum(a) + row_sum(b)
    _plain("distribute sum", sums.distribute_sum),
    # row_sum(a) + row_sum(b) -> row_sum(a + b)
    _plain("merge sums", sums.merge_sums),
    # head_sum(x @ k) -> head_sum(x) @ k, head_sum(k @ x) -> k @ head_sum(x) for k of the key head
    Rule("sum heads first", heads.sum_heads_first.__doc__ or "", heads.sum_heads_first),
    # head_sum(a + b) -> head_sum(a) + head_sum(b)
    _plain("distribute head sum", heads.distribute_head_sum),
    # head_sum(a) + head_sum(b) -> head_sum(a + b)
    _plain("merge head sums", heads.merge_head_sums),
    # (I + s L)^-1 s -> s (I + L s)^-1, and back
    _plain("push through", gates.push_through),
    # decay(G) * to_end(G) -> tril(to_end(G)^T), and back
    _plain("absorb to_end", gates.absorb_to_end),
    # decay(G) * from_start(G)^T -> tril(from_start(G)), and back
    _plain("absorb from_start", gates.absorb_from_start),
    # from_start(G) * to_end(G) -> total(G)
    _plain("merge gates", gates.merge_gates),
    # decay(G) * (a @ b) -> (decay(G) * a) @ (decay(G) * b) for lower a and b
    _plain("split decay", gates.split_decay),
    # decay(G) * (I + L)^-1 -> (I + decay(G) * L)^-1
    _plain("gate inverse", gates.gate_inverse),
    # (I + decay(G) * L)^-1 -> decay(G) * (I + L)^-1
    Rule(
        "ungate inverse",
        (gates.ungate_inverse.__doc__ or ""),
        gates.ungate_inverse,
        requires="L = stril(b * X @ X^T) with 0 <= b |x|^2 <= 2; else the ungated inverse may grow without bound",
        refuse=gates.refuse_ungate_inverse,
    ),
)

EVERYWHERE = Rule("hoist scale everywhere", hoist_everywhere.__doc__ or "", lambda node, facts: iter(()))
"""Not a rewrite of one node: see `qlagen.algebra.rewrite_operands`."""


@dataclass(frozen=True)
class Match:
    """One place where a rule applies: `before` may become `after` everywhere."""

    rule: Rule
    before: Node
    after: Node
    more: tuple[tuple[Node, Node], ...] = ()
    """Further exchanges that are done together with the first."""

    @property
    def exchanges(self) -> tuple[tuple[Node, Node], ...]:
        """What becomes what."""
        return ((self.before, self.after), *self.more)


Known = dict[Node, tuple[Match, ...]]
"""Matches of nodes seen before, under the same facts: forms of one search share most of their nodes."""


def matches(roots: tuple[Node, ...], facts: Facts, known: Known | None = None) -> Iterator[Match]:
    """Every place below the roots where a rule applies, in an order that depends on the roots alone."""
    memory = {} if known is None else known
    for node in topological(roots):
        if node not in memory:
            memory[node] = tuple(
                Match(rule, node, after) for rule in RULES for after in rule.rewrite(node, facts) if after is not node
            )
        yield from memory[node]


def refusals(roots: tuple[Node, ...], facts: Facts) -> tuple[Refusal, ...]:
    """Every place where a rule would apply but for its prerequisite, with the reason."""
    found = [
        Refusal(rule.name, show(node), reason)
        for node in topological(roots)
        for rule in RULES
        if rule.refuse is not None
        for reason in rule.refuse(node, facts)
    ]
    return tuple(dict.fromkeys(found))
