"""Ways to cut a forward form into kernels: what is made ahead, chunk-parallel, and what the walk over the chunks does.

State-free expressions may be hoisted out of the serial chain into a kernel that runs over all chunks at once and stores
them, or be made by the walk on the way. Read-outs may leave the walk, which then stores the state before every chunk;
what both need is stored too or computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, depends_on, kind
from qlagen.algebra.ledger import canonical, computed
from qlagen.algebra.plan import Kernel
from qlagen.algebra.text import show

MOST_HOISTED = 5
"""Candidates for hoisting that are combined; a form with more keeps the most expensive ones."""
LONGEST_TITLE = 40


@dataclass(frozen=True)
class Plan:
    """Kernels in order; `carried` is the walk's next state."""

    kernels: tuple[Kernel, ...]
    carried: Node

    def describe(self) -> str:
        """What each kernel makes, for example ``A | Vn O S1``."""
        return " | ".join(" ".join(k.names) for k in self.kernels)


def forward_plans(form: Form, model: CostModel) -> Iterator[Plan]:
    """Every combination of hoisted expressions, each with the read-outs in the walk or apart."""
    names = {canonical(node): name for name, node in form.stages}
    candidates = hoistable(form, model)
    for count in range(len(candidates) + 1):
        for hoisted in combinations(candidates, count):
            ahead = (
                (
                    _kernel(
                        hoisted,
                        hoisted,
                        names,
                    ),
                )
                if hoisted
                else ()
            )
            both = (form.output, form.state)
            yield Plan((*ahead, _kernel((form.output,), both, names)), form.state)
            for shared in _shared(form, model):
                walk = _kernel(shared, (*shared, form.state), names, stores_state=_reads_state(form, shared))
                read_out = _kernel((form.output,), (form.output,), names)
                yield Plan((*ahead, walk, read_out), form.state)


def hoistable(form: Form, model: CostModel) -> tuple[Node, ...]:
    """State-free matrices that the walk uses, and inverses, if they take matrix products; at most `MOST_HOISTED`, in
    the order of the stages."""
    nodes = computed((form.output, form.state))
    free = [n for n in nodes if model.state not in depends_on(n) and kind(n) == "matrix"]
    used = {canonical(a) for n in nodes if model.state in depends_on(n) for a in n.args}
    found = [n for n in free if n.op == "inverse" or (canonical(n) in used and _work_below(n, model))]
    ranked = sorted(found, key=lambda n: -_work_below(n, model))[:MOST_HOISTED]
    place = {canonical(node): number for number, (_, node) in enumerate(form.stages)}
    return tuple(sorted(ranked, key=lambda n: place.get(canonical(n), -1)))


def _work_below(node: Node, model: CostModel) -> float:
    return sum(model.work(n).multiply_adds for n in computed((node,)))


def _shared(form: Form, model: CostModel) -> Iterator[tuple[Node, ...]]:
    """What the walk may store for read-outs that are apart: nothing, or all carried matrices that both need."""
    walk = {canonical(n) for n in computed((form.state,))}
    read_out = computed((form.output,))
    users = {canonical(a) for n in read_out if canonical(n) not in walk for a in n.args}
    carried = [n for n in read_out if model.state in depends_on(n) and kind(n) == "matrix"]
    both = tuple(n for n in carried if canonical(n) in walk and canonical(n) in users)
    yield ()
    if both:
        yield both


def _reads_state(form: Form, stored: tuple[Node, ...]) -> bool:
    """Whether the read-outs need the state itself, beside what is stored."""
    known = frozenset(map(canonical, stored))
    nodes = computed((form.output,), known)
    state_names = {canonical(a) for n in nodes for a in n.args if a.op in ("input", "transpose")}
    return any(n.op == "input" and n.shape == form.state.shape for n in state_names)


def _kernel(
    outputs: tuple[Node, ...],
    computes: tuple[Node, ...],
    names: dict[Node, str],
    stores_state: bool = False,
) -> Kernel:
    titles = tuple(dict.fromkeys(names.get(canonical(n)) or _title(n, names) for n in computes))
    return Kernel(titles, outputs, computes, stores_state)


def _title(node: Node, names: dict[Node, str]) -> str:
    """A short name for an expression that is no stage."""
    text = show(node, names)
    return f"({text})" if len(text) <= LONGEST_TITLE else "prepared"
