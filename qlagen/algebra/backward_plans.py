"""Ways to run the backward pass of a sequence: what the forward pass leaves in memory, and how the kernels are cut.

Stages of the forward pass are saved or computed again. States are saved before every n-th chunk; those between are
rebuilt from there, on chip where n - 1 of them fit in half of the shared memory, else in memory by a kernel that runs
over all segments at once. One kernel walks the chunks in reverse and makes all gradients; or it carries only the
state's cotangent and stores that, and a chunk-parallel kernel makes the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from qlagen.algebra.backward import BackwardForm
from qlagen.algebra.clocks import Clocks
from qlagen.algebra.cost import DATA_BYTES, CostModel
from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node, depends_on, kind
from qlagen.algebra.ledger import canonical, computed
from qlagen.algebra.pareto import Objectives, pareto_set
from qlagen.algebra.plan import Kernel
from qlagen.algebra.plan_bill import PlanBill, bill_plan
from qlagen.algebra.target import Throughput

CHECKPOINTS = (1, 2, 4, 8, 16)
MOST_SAVED = 4


@dataclass(frozen=True)
class BackwardPlan:
    """One way to run it, and its bill per chunk and value head; forward work that is done again is part of it."""

    saved: tuple[str, ...]
    """Stages of the forward pass that are in memory."""
    checkpoint: int
    """The state before every so many chunks is in memory."""
    rebuilt: str
    """Where the states between are: ``none``, ``on chip`` or ``in memory``."""
    split: bool
    """Gradients are made by a kernel of their own."""
    bill: PlanBill
    """Its `hbm_bytes` include what the forward pass writes for it."""
    kept_bytes: float
    """What is held in memory from the forward pass to this one."""

    @property
    def objectives(self) -> Objectives:
        """Multiply-adds, serial clocks, memory traffic, memory held."""
        return (self.bill.multiply_adds, self.bill.serial_clocks, self.bill.hbm_bytes, self.kept_bytes)


def backward_model(forward: CostModel, backward: BackwardForm, state: str) -> CostModel:
    """The cost model of a backward pass: it carries the cotangent of the state; states and the outputs' cotangents are
    in memory in the data type."""
    stored = {**forward.bytes_per_entry, state: DATA_BYTES, backward.output_seed.value: DATA_BYTES}
    return replace(forward, bytes_per_entry=stored, state=backward.state_seed.value, _work={})


def backward_plans(
    form: Form, backward: BackwardForm, forward: CostModel, facts: Throughput
) -> tuple[BackwardPlan, ...]:
    """Plans that no other beats. `form` is the forward pass that would rebuild states, `forward` its cost model."""
    return pareto_set(_all_plans(form, backward, forward, facts), lambda plan: plan.objectives)


def saveable(form: Form, backward: BackwardForm) -> tuple[tuple[str, Node], ...]:
    """Stages of the forward pass that the backward pass uses: name and expression, at most `MOST_SAVED`."""
    used = set(map(canonical, computed(backward.roots)))
    inner = [(n, e) for n, e in form.stages if e not in (form.output, form.state) and kind(e) == "matrix"]
    return tuple((n, e) for n, e in inner if canonical(e) in used)[:MOST_SAVED]


def _all_plans(form: Form, backward: BackwardForm, forward: CostModel, facts: Throughput) -> Iterator[BackwardPlan]:
    candidates = saveable(form, backward)
    for count in range(len(candidates) + 1):
        for chosen in combinations(candidates, count):
            builder = _Builder(form, backward, forward, facts, chosen)
            for split in (False, True):
                for every in CHECKPOINTS:
                    yield builder.plan(every, split)


@dataclass(frozen=True)
class _Builder:
    """Plans with the same stages saved."""

    form: Form
    backward: BackwardForm
    forward: CostModel
    facts: Throughput
    chosen: tuple[tuple[str, Node], ...]

    @property
    def saved(self) -> frozenset[Node]:
        return frozenset(canonical(node) for _, node in self.chosen)

    def plan(self, every: int, split: bool) -> BackwardPlan:
        state = DATA_BYTES * self.forward.entries(self.form.state.shape)
        stages = sum(self.forward.bytes_of(node) for _, node in self.chosen)
        on_chip = every > 1 and (every - 1) * state <= self.facts.shared_memory / 2 and not split
        model = backward_model(self.forward, self.backward, self.forward.state)
        if on_chip:
            model = replace(model, bytes_per_entry={**model.bytes_per_entry, self.forward.state: 0}, _work={})
        bill = bill_plan(self._kernels(split, model), self.backward.state, Clocks(model, self.facts), self.saved)
        kept = stages + state / every
        bill = replace(bill, hbm_bytes=bill.hbm_bytes + kept + (state / every if on_chip else 0))
        if every > 1:
            bill = self._rebuild(bill, (every - 1) / every, 0 if on_chip else state, on_chip)
        rebuilt = "none" if every == 1 else "on chip" if on_chip else "in memory"
        return BackwardPlan(tuple(n for n, _ in self.chosen), every, rebuilt, split, bill, kept)

    def _rebuild(self, bill: PlanBill, part: float, state: float, serial: bool) -> PlanBill:
        """Adds the work that rebuilds this part of the states. What is written to memory here is read as a saved state
        would be."""
        clocks = Clocks(replace(self.forward, _work={}), self.facts)
        kernel = Kernel(("states",), (), (self.form.state,))
        walk = bill_plan((kernel,), self.form.state, clocks, self.saved)
        return PlanBill(
            bill.multiply_adds + part * walk.multiply_adds,
            bill.elementwise + part * walk.elementwise,
            bill.exps + part * walk.exps,
            bill.hbm_bytes + part * (walk.hbm_bytes + state),
            bill.chain_gemms,
            bill.serial_clocks + (part * walk.serial_clocks if serial else 0.0),
        )

    def _kernels(self, split: bool, model: CostModel) -> tuple[Kernel, ...]:
        gradients = tuple(node for _, node in self.backward.gradients)
        if not split:
            return (Kernel(("gradients",), gradients, (*gradients, self.backward.state)),)
        walk = {canonical(n) for n in computed((self.backward.state,), self.saved)}
        rest = [n for n in computed(gradients, self.saved) if canonical(n) not in walk]
        users = {canonical(a) for n in (*rest, *gradients) for a in (n, *n.args)}
        cut = tuple(
            n
            for n in computed((self.backward.state,), self.saved)
            if canonical(n) in users and model.state in depends_on(n) and kind(n) == "matrix"
        )
        return (
            Kernel(("chain",), cut, (*cut, self.backward.state), stores_state=True),
            Kernel(("gradients",), gradients, gradients),
        )
