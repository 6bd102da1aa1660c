"""A bounded beam search over whole programs of expressions.

A round looks at every rewrite of every program in the front. Ledgers forecast the bill of each, which costs only what
the rewrite touches; the best of them are made, billed exactly and make the next front. Nothing depends on hashes of
objects or on time, so the same input gives the same programs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from qlagen.algebra.cost import CostModel
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import Node, transpose
from qlagen.algebra.ledger import Bill, Ledger, Rewriter, canonical, computed
from qlagen.algebra.rewrite_operands import hoist_everywhere
from qlagen.algebra.rules import EVERYWHERE, RULES, Match

Roots = tuple[Node, ...]
Key = tuple[float, ...]


@dataclass(frozen=True)
class Bounds:
    """How far a search goes. `width`: programs kept a round. `tried`: programs made and billed a round. `rounds` at
    most; `patience`: rounds without a gain before it stops."""

    width: int = 12
    tried: int = 400
    rounds: int = 60
    patience: int = 4


@dataclass(frozen=True, eq=False)
class Program:
    """Results as expressions, and how they were reached from another program."""

    roots: Roots
    bill: Bill
    parent: Program | None = None
    match: Match | None = None
    depth: int = 0

    def path(self) -> Iterator[Program]:
        """This program and those before it, first one first."""
        if self.parent is not None:
            yield from self.parent.path()
        yield self

    @property
    def tie(self) -> tuple[int, str]:
        """What decides between equal bills: fewer rewrites, then the text."""
        return (self.depth, "|".join(root.key for root in self.roots))


Objective = Callable[[Program], Key]
"""What a search minimises, most important first."""


def by_bill(program: Program) -> Key:
    """Multiply-adds, then rounded entries, elementwise operations and exps."""
    return tuple(program.bill)


@dataclass
class Search:
    """A search from one program. `saved` holds expressions that are in memory already, in canonical form."""

    model: CostModel
    facts: Facts
    saved: frozenset[Node] = frozenset()
    bounds: Bounds = field(default_factory=Bounds)
    objectives: Sequence[Objective] = (by_bill,)
    """The front takes from each in turn; the first one decides what a gain is."""
    visited: list[Program] = field(default_factory=list)
    """Every program that was made, in order."""
    _matches: dict[Node, tuple[Match, ...]] = field(default_factory=dict)

    def run(self, roots: Roots) -> Program:
        """The best program that the search meets, by the first objective."""
        best = self.start(roots)
        front, seen, idle = [best], {roots}, 0
        for _ in range(self.bounds.rounds):
            made = self._round(front, seen)
            if not made:
                break
            front = self._select(made)
            gains = [p for p in front if self.objectives[0](p) < self.objectives[0](best)]
            best, idle = (gains[0], 0) if gains else (best, idle + 1)
            if idle == self.bounds.patience:
                break
        return best

    def start(self, roots: Roots) -> Program:
        """The program as it is given."""
        program = Program(roots, Ledger(roots, self.model, self.saved).bill)
        self.visited.append(program)
        return program

    def _round(self, front: list[Program], seen: set[Roots]) -> list[Program]:
        forecasts: list[tuple[Bill, int, Program, Match]] = []
        tools: dict[Program, tuple[Ledger, Rewriter]] = {}
        for program in front:
            ledger = Ledger(program.roots, self.model, self.saved)
            tools[program] = (ledger, Rewriter(program.roots, self.saved))
            for match in self.matches(program.roots):
                forecasts.append((ledger.forecast(match.exchanges), len(forecasts), program, match))
        made: list[Program] = []
        for _, _, program, match in nsmallest(self.bounds.tried, forecasts, key=lambda f: f[:2]):
            ledger, rewriter = tools[program]
            roots = rewriter.rewrite(match.exchanges)
            if roots not in seen:
                seen.add(roots)
                made.append(Program(roots, ledger.bill_of(roots), program, match, program.depth + 1))
        self.visited += made
        return made

    def _select(self, made: list[Program]) -> list[Program]:
        """The best by each objective in turn, until the front is full."""
        orders = [sorted(made, key=lambda p, o=objective: (o(p), p.tie)) for objective in self.objectives]  # type: ignore[misc]
        front: dict[Program, None] = {}
        for rank in range(len(made)):
            for order in orders:
                front[order[rank]] = None
            if len(front) >= self.bounds.width:
                break
        return list(front)[: self.bounds.width]

    def matches(self, roots: Roots) -> Iterator[Match]:
        """Every rewrite of what is computed, each once for an expression and its transpose."""
        nodes = computed(roots, self.saved)
        for node in nodes:
            found = self._matches.get(canonical(node))
            if found is None:
                found = self._matches[canonical(node)] = tuple(self._node_matches(node))
            yield from found
        for first, *others in hoist_everywhere(n for n in nodes if n.op == "matmul" and self.model.is_gemm(n)):
            yield Match(EVERYWHERE, *first, tuple(others))

    def _node_matches(self, node: Node) -> Iterator[Match]:
        known = {canonical(node)}
        for before in dict.fromkeys((node, transpose(node))):
            if before.op == "transpose":
                continue
            for rule in RULES:
                for after in rule.rewrite(before, self.facts):
                    if canonical(after) not in known:
                        known.add(canonical(after))
                        yield Match(rule, before, after)
