"""What is known about an operator's algebra: both directions, Pareto sets and facts, as text and for tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from qlagen.algebra.backward_plans import BackwardPlan, backward_model
from qlagen.algebra.context_parallel import ContextParallel, context_parallel
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Cost, Derivation
from qlagen.algebra.derive_backward import BackwardDerivation, plans_of
from qlagen.algebra.explain import amount, cost_table, explain, explain_json, indent, product_lines, step_lines
from qlagen.algebra.explore import ForwardSet, explore_forward, flatten
from qlagen.algebra.ir import Node, kind
from qlagen.algebra.latex import latex_listing
from qlagen.algebra.ledger import canonical, computed
from qlagen.algebra.listing import Listing, make_listing, upright
from qlagen.algebra.plan import fused_plan, staged_plan
from qlagen.algebra.share_heads import SharedBackward, share_heads
from qlagen.algebra.stacking import stacked_products
from qlagen.algebra.target import Throughput, load_throughput
from qlagen.algebra.text import show


@dataclass(frozen=True)
class Report:
    """`group` value heads share a key head in all bills but those of single rewrites."""

    derivation: Derivation
    group: int
    textbook_cost: Cost
    chosen_cost: Cost
    forward: ForwardSet
    context: ContextParallel | None
    backward: BackwardDerivation | None = None
    """For one value head per key head."""
    shared: SharedBackward | None = None
    """For `group` of them, if there are several."""
    plans: tuple[BackwardPlan, ...] = ()

    @property
    def forward_listing(self) -> Listing:
        spec, form = self.derivation.spec, self.derivation.chosen
        results = ((spec.output, form.output), (spec.state_output, form.state))
        inner = [(n, e) for n, e in form.stages if n not in (spec.output, spec.state_output)]
        return make_listing(results, inner, _taken(self.derivation))

    @property
    def grouped(self) -> BackwardDerivation:
        """The backward pass for the group."""
        assert self.backward is not None
        return self.backward if self.shared is None else self.shared.derived

    @property
    def backward_listing(self) -> Listing:
        chosen, state = self.grouped.chosen, self.derivation.spec.state
        results = (*((f"d{name}", node) for name, node in chosen.gradients), (f"d{state}", chosen.state))
        return make_listing(results, chosen.stages, _taken(self.derivation))


def make_report(
    derivation: Derivation,
    backward: BackwardDerivation | None = None,
    *,
    group: int = 1,
    facts: Throughput | None = None,
) -> Report:
    """The report on a derivation and, if it is given, on its backward pass. Raises E-PROOF if a form is wrong."""
    spec, chunk = derivation.spec, derivation.proof.chunk
    throughput = load_throughput() if facts is None else facts
    model = CostModel.of(spec, chunk, group)
    shared = None if backward is None or group == 1 else share_heads(backward, group)
    grouped = backward if shared is None else shared.derived
    return Report(
        derivation,
        group,
        model.cost(derivation.textbook, staged_plan(derivation.textbook, spec.state)),
        model.cost(derivation.chosen, fused_plan(derivation.chosen, spec.state)),
        explore_forward(derivation, throughput, group),
        context_parallel(derivation, group),
        backward,
        shared,
        () if grouped is None else plans_of(grouped, throughput, group),
    )


def _taken(derivation: Derivation) -> tuple[str, ...]:
    spec = derivation.spec
    return (*(i.chunk_symbol for i in spec.inputs), spec.state, *(s.name for s in spec.stages))


# Text


def report_text(report: Report) -> str:
    """The report for people."""
    parts = [explain(report.derivation).rstrip("\n"), ""]
    if report.group > 1:
        parts += [f"With {report.group} value heads per key head"]
        parts += [*indent(cost_table(report.textbook_cost, report.chosen_cost)), ""]
    parts += ["Forms and kernel plans that no other beats", *indent(_forward_lines(report)), ""]
    stacked = list(_stacked_lines(_forward_nodes(report), report.forward_listing, report.derivation.spec.state))
    parts += ["Products that may run as one, stacked", *indent(stacked), ""] if stacked else []
    parts += ["Context parallelism", *indent(_context_lines(report))]
    if report.backward is not None:
        parts += ["", *_backward_section(report, report.backward)]
    return "\n".join(parts) + "\n"


def _forward_lines(report: Report) -> Iterator[str]:
    yield f"{'madds':>8s} {'serial':>7s} {'chain':>5s} {'memory':>9s} {'elementwise':>11s}  kernels"
    for point in report.forward.points:
        bill, kernels = point.bill, point.plan.describe()
        yield (
            f"{amount(bill.multiply_adds, 1e6, 'M'):>8s} {bill.serial_clocks:7.0f} {bill.chain_gemms:5d} "
            f"{amount(bill.hbm_bytes, 1024.0, 'KB'):>9s} {amount(bill.elementwise, 1e3, 'k'):>11s}  {kernels}"
        )
    yield "serial: modelled clocks of a chunk in the kernel that walks them; forms proven, any wrong with probability"
    yield f"<= {report.forward.bound:.1e}"


def _context_lines(report: Report) -> Iterator[str]:
    facts = report.context
    if facts is None:
        yield "the next state is not M S + B: segments cannot be joined"
        return
    rest = "" if facts.chunk.is_diagonal else f" + {show(facts.chunk.rest)}".replace("+ -", "- ")
    yield f"M = {show(facts.chunk.diagonal)} * I{rest}"
    yield f"B = {show(facts.chunk.write)}"
    yield f"state alone: {show(facts.state_only.state)}"
    work = amount(facts.state_only.multiply_adds, 1e6, "M")
    yield f"  {work} multiply-adds, {facts.state_only.chain_gemms} products on the serial chain"
    yield f"M may be skipped: {_skip_text(report)}"


def _skip_text(report: Report) -> str:
    assert report.context is not None
    skip = report.context.skip
    if skip.bound == "never":
        return "never, no bound of |M| is known"
    text = {
        "log_gate_sum": "log |M| <= sum of g",
        "largest_log_gate_sum": "log |M| <= sum over tokens of the largest g of any channel",
        "largest_channel_sum": "log |M| <= largest sum of g of any channel",
    }[skip.bound]
    if skip.condition:
        text += f", if {skip.condition} ({'declared' if skip.granted else f'not declared: add {skip.growth}'})"
    return text


def _backward_section(report: Report, backward: BackwardDerivation) -> Iterator[str]:
    grouped = report.grouped
    names = {node: name for name, node in backward.chosen.stages}
    saved = ", ".join(show(node, names) for node in backward.saved) or "nothing"
    yield f"Backward pass, {report.group} value heads per key head; in memory: states, {saved}"
    yield ""
    yield "Rewrites of reverse mode on the chosen form"
    yield from indent(step_lines(backward.start_cost, backward.steps))
    yield ""
    if report.shared is not None:
        yield f"Rewrites for {report.group} value heads per key head"
        yield from indent(step_lines(grouped.start_cost, grouped.steps))
        yield ""
    yield "Chosen backward pass"
    yield from indent(report.backward_listing.text())
    yield ""
    yield from cost_table(grouped.textbook_cost, grouped.chosen_cost)
    yield ""
    yield "Matrix products"
    yield from indent(_backward_products(report, grouped))
    yield ""
    stacked = list(_stacked_lines(_backward_nodes(grouped), report.backward_listing, grouped.chosen.state_seed.value))
    if stacked:
        yield "Products that may run as one, stacked"
        yield from indent(stacked)
        yield ""
    yield "Plans that no other beats"
    yield from indent(_plan_lines(report))
    yield ""
    proof = backward.proof
    yield (
        f"Proven to be the derivative of [recurrence] at C={proof.chunk}, K={proof.key_dim}, V={proof.value_dim}: "
        f"a wrong one passes with probability <= {proof.bound:.1e}"
    )
    if report.shared is not None:
        yield f"The same for a group of heads: a wrong sum passes with probability <= {report.shared.bound:.1e}"


def _backward_products(report: Report, backward: BackwardDerivation) -> Iterator[str]:
    spec = report.derivation.spec
    model = backward_model(CostModel.of(spec, report.derivation.proof.chunk, report.group), backward.start, spec.state)
    nodes = _backward_nodes(backward)
    names = {node: name for name, node in report.backward_listing.lines if kind(node) == "matrix"}
    return product_lines(nodes, names, model, tuple(map(upright, model.chain(backward.chosen.state))))


def _backward_nodes(backward: BackwardDerivation) -> tuple[Node, ...]:
    return tuple(map(upright, computed(backward.chosen.roots, frozenset(map(canonical, backward.saved)))))


def _forward_nodes(report: Report) -> tuple[Node, ...]:
    form = report.derivation.chosen
    return tuple(map(upright, computed((form.output, form.state))))


def _stacked_lines(nodes: tuple[Node, ...], listing: Listing, carried: str) -> Iterator[str]:
    names = {node: name for name, node in listing.lines if kind(node) == "matrix"}
    for group in stacked_products(nodes, carried):
        left = "; ".join(show(product.args[0], names) for product in group)
        yield f"[{left}] @ {show(group[0].args[1], names)}"


def _plan_lines(report: Report) -> Iterator[str]:
    yield f"{'madds':>8s} {'serial':>7s} {'memory':>9s} {'kept':>9s}  saved; states; kernels"
    for plan in report.plans:
        saved = " ".join(plan.saved) or "nothing"
        states = "every state" if plan.checkpoint == 1 else f"1 state in {plan.checkpoint}, rest {plan.rebuilt}"
        kernels = "chain | gradients" if plan.split else "one kernel"
        yield (
            f"{amount(plan.bill.multiply_adds, 1e6, 'M'):>8s} {plan.bill.serial_clocks:7.0f} "
            f"{amount(plan.bill.hbm_bytes, 1024.0, 'KB'):>9s} {amount(plan.kept_bytes, 1024.0, 'KB'):>9s}  "
            f"{saved}; {states}; {kernels}"
        )


def report_latex(report: Report) -> str:
    """The chosen forms as LaTeX."""
    parts = [latex_listing(report.forward_listing)]
    parts += [latex_listing(report.backward_listing)] if report.backward is not None else []
    return "\n".join(parts)


# Tools


def report_json(report: Report) -> dict[str, Any]:
    """The report for tools: JSON-ready, numbers unrounded, per chunk and value head."""
    value = explain_json(report.derivation)
    textbook, chosen = report.textbook_cost, report.chosen_cost
    value["group"] = report.group
    value["forward"] |= {
        "textbook_madds": textbook.multiply_adds,
        "textbook_hbm_bytes": textbook.hbm_bytes,
        "madds": chosen.multiply_adds,
        "exps": chosen.exps,
        "hbm_bytes": chosen.hbm_bytes,
        "elementwise": chosen.elementwise,
        "stacked": list(_stacked_lines(_forward_nodes(report), report.forward_listing, report.derivation.spec.state)),
        "pareto": list(flatten(report.forward.points)),
        "pareto_bound": report.forward.bound,
        "latex": latex_listing(report.forward_listing),
    }
    value["context_parallel"] = _context_json(report)
    value["backward"] = None if report.backward is None else _backward_json(report, report.backward)
    return value


def _context_json(report: Report) -> dict[str, Any] | None:
    facts = report.context
    if facts is None:
        return None
    return {
        "diagonal": show(facts.chunk.diagonal),
        "rest": show(facts.chunk.rest),
        "write": show(facts.chunk.write),
        "skip": asdict(facts.skip),
        "state_only": {
            "expression": show(facts.state_only.state),
            "madds": facts.state_only.multiply_adds,
            "chain_gemms": facts.state_only.chain_gemms,
            "rules": list(facts.state_only.rules),
        },
    }


def _backward_json(report: Report, backward: BackwardDerivation) -> dict[str, Any]:
    grouped, bound = report.grouped, backward.proof.bound
    textbook, chosen = grouped.textbook_cost, grouped.chosen_cost
    steps = backward.steps if report.shared is None else (*backward.steps, *grouped.steps)
    listing = report.backward_listing
    return {
        "textbook_madds": textbook.multiply_adds,
        "madds": chosen.multiply_adds,
        "exps": chosen.exps,
        "hbm_bytes": chosen.hbm_bytes,
        "chain_gemms": chosen.chain_gemms,
        "elementwise": chosen.elementwise,
        "rounded": chosen.rounded,
        "stages": dict(line.split(" = ", 1) for line in _stripped(listing)),
        "steps": [{"rule": s.rule, "before": s.before, "after": s.after} for s in steps],
        "stacked": list(_stacked_lines(_backward_nodes(grouped), listing, grouped.chosen.state_seed.value)),
        "pareto": [_plan_json(plan) for plan in report.plans],
        "latex": latex_listing(listing),
        "proof_bound": bound if report.shared is None else bound + report.shared.bound,
    }


def _stripped(listing: Listing) -> Iterator[str]:
    for line in listing.text():
        name, expression = line.split("=", 1)
        yield f"{name.strip()} = {expression.strip()}"


def _plan_json(plan: BackwardPlan) -> dict[str, Any]:
    return {
        "madds": plan.bill.multiply_adds,
        "serial_clocks": plan.bill.serial_clocks,
        "hbm_bytes": plan.bill.hbm_bytes,
        "kept_bytes": plan.kept_bytes,
        "chain_gemms": plan.bill.chain_gemms,
        "elementwise": plan.bill.elementwise,
        "exps": plan.bill.exps,
        "saved": list(plan.saved),
        "checkpoint": plan.checkpoint,
        "rebuilt": plan.rebuilt,
        "kernels": "chain | gradients" if plan.split else "gradients",
    }
