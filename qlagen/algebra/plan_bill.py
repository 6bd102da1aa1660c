"""The bill of a plan: what each kernel computes (again, if no earlier one stored it), reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.clocks import Clocks
from qlagen.algebra.ir import Node
from qlagen.algebra.ledger import canonical, computed
from qlagen.algebra.plan import Kernel


@dataclass(frozen=True)
class PlanBill:
    """Per chunk and value head, over all kernels of a plan."""

    multiply_adds: float
    elementwise: float
    exps: float
    hbm_bytes: float
    chain_gemms: int
    """Matrix products on the path from the carried value to its successor."""
    serial_clocks: float
    """Modelled clocks of a chunk in the kernel that walks them: its chain or its busiest pipe."""


def bill_plan(
    plan: tuple[Kernel, ...], carried: Node, clocks: Clocks, saved: frozenset[Node] = frozenset()
) -> PlanBill:
    """The bill of a plan; `carried` is the successor of the carried value, which one of the kernels computes. What is
    in `saved`, in canonical form, is in memory from the start."""
    model = clocks.model
    stored = set(saved)
    multiply_adds = elementwise = exps = 0.0
    serial = 0.0
    for kernel in plan:
        nodes = computed(kernel.computes, stored)
        works = [model.work(node) for node in nodes]
        multiply_adds += sum(w.multiply_adds for w in works)
        elementwise += sum(w.elementwise for w in works)
        exps += sum(w.exps for w in works)
        operands = model.operands(nodes)
        elementwise += sum(model.conversion(o) for o in operands if canonical(o) not in stored)
        if carried in kernel.computes:
            serial = max(clocks.latency(carried), clocks.busiest(nodes))
        stored.update(map(canonical, kernel.outputs))
    return PlanBill(multiply_adds, elementwise, exps, model.hbm_bytes(plan, saved), clocks.depth(carried), serial)
