"""The bill of a plan: what each of its kernels computes (again, if an earlier one did not store it), reads and writes."""

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
    totals = [0.0, 0.0, 0.0]
    serial = 0.0
    for kernel in plan:
        nodes = computed(kernel.computes, stored)
        for node in nodes:
            work = model.work(node)
            totals = [t + w for t, w in zip(totals, (work.multiply_adds, work.elementwise, work.exps), strict=True)]
        operands = model.operands(nodes)
        totals[1] += sum(model.conversion(o) for o in operands if canonical(o) not in stored)
        if carried in kernel.computes:
            serial = max(clocks.latency(carried), clocks.busiest(nodes))
        stored.update(map(canonical, kernel.outputs))
    return PlanBill(*totals, model.hbm_bytes(plan, saved), clocks.depth(carried), serial)
