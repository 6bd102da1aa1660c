"""The issue order of a role: at most ten legal candidates, ranked by the model, one taken or pinned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qlagen.errors import QlagenError, did_you_mean
from qlagen.schedule.fragments import Allocation, allocate
from qlagen.schedule.issue import Graph, Line, ListScheduler, build_graph
from qlagen.schedule.model import RankedOrder
from qlagen.schedule.steps import RoleSteps

MOST_CANDIDATES = 10
_MOST_COMBINATIONS = 4096


Delays = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Order:
    """One legal order of a role, with its registers and the model's clocks per iteration."""

    lines: tuple[Line, ...]
    clocks: int
    delays: Delays
    aliases: tuple[Delays, ...]
    """Further delays that give the same order."""
    allocation: Allocation

    @property
    def ranked(self) -> RankedOrder:
        return RankedOrder(self.delays, self.clocks, self.allocation.peak)


def candidate_orders(role: RoleSteps, goal: str | None, tie_percent: int) -> tuple[Order, ...]:
    """Distinct orders of a role, best first. Off-chain products are tried behind 0, 1, ... chain products."""
    graph = build_graph(role, goal)
    found: dict[tuple[tuple[str, int], ...], tuple[ListScheduler, list[Delays]]] = {}
    for delays in _delays(graph):
        scheduler = ListScheduler(graph, delays)
        scheduler.run()
        key = tuple(("", line.groups) if line.step is None else (line.step.name, 0) for line in scheduler.lines)
        found.setdefault(key, (scheduler, []))[1].append(tuple(delays.items()))
    orders = []
    for scheduler, same in found.values():
        lines = tuple(scheduler.lines)
        orders.append(Order(lines, scheduler.clock, same[0], tuple(same[1:]), allocate(role, lines)))
    return rank(orders, tie_percent)[:MOST_CANDIDATES]


def order_as_written(role: RoleSteps) -> Order:
    """The program's order: slower, and with the fewest results held at a time."""
    scheduler = ListScheduler(build_graph(role, None), {}, as_written=True)
    scheduler.run()
    lines = tuple(scheduler.lines)
    return Order(lines, scheduler.clock, (), (), allocate(role, lines))


def _delays(graph: Graph) -> Iterator[dict[str, int]]:
    gemms = graph.off_chain_gemms()
    choices = range(graph.chain_gemms() + 1)
    if len(choices) ** len(gemms) > _MOST_COMBINATIONS:
        yield from (dict.fromkeys(gemms, delay) for delay in choices)
        return
    for pick in itertools.product(choices, repeat=len(gemms)):
        yield dict(zip(gemms, pick, strict=True))


def rank(orders: Sequence[Order], tie_percent: int) -> tuple[Order, ...]:
    """By time, and by register area among those within the tie of the shortest."""
    shortest = min(order.clocks for order in orders)

    def key(order: Order) -> tuple[bool, int, int]:
        close = 100 * order.clocks <= shortest * (100 + tie_percent)
        first, second = (order.allocation.area, order.clocks) if close else (order.clocks, order.allocation.area)
        return not close, first, second

    return tuple(sorted(orders, key=key))


def choose(
    role: RoleSteps, orders: Sequence[Order], pins: Mapping[str, int], overhead: int, budget: int
) -> tuple[Order, ...]:
    """The candidates that fit the pins and the role's register budget, in the order given.

    Raises E-PIN and E-ESTIMATE.
    """
    wanted = _resolve_pins(role, orders, pins)
    pinned = tuple(order for order in orders if _matches(order, wanted))
    if not pinned:
        raise _no_such_order(role, orders, pins)
    fitting = tuple(order for order in pinned if order.allocation.peak + overhead <= budget)
    if not fitting:
        least = min(order.allocation.peak for order in pinned)
        message = f"role {role.name} needs {least + overhead} registers per thread, and has {budget}"
        notes = [f"{least} for live fragments in the best of {len(pinned)} orders, {overhead} for the rest"]
        hints = ["give the role more registers, or use a smaller value tile"]
        raise QlagenError("E-ESTIMATE", message, notes=notes, hints=hints)
    return fitting


def _matches(order: Order, wanted: Mapping[str, int]) -> bool:
    return any(wanted.items() <= dict(delays).items() for delays in (order.delays, *order.aliases))


def _resolve_pins(role: RoleSteps, orders: Sequence[Order], pins: Mapping[str, int]) -> dict[str, int]:
    """Pins by GEMM name. ``#n`` means the n-th off-chain GEMM: a program with fewer has nothing to pin, and one with
    a shorter chain takes its longest delay."""
    gemms = [name for name, _ in orders[0].delays]
    resolved = {}
    for key, delay in pins.items():
        if key.startswith("#") and key[1:].isdecimal():
            if 1 <= int(key[1:]) <= len(gemms):
                gemm = gemms[int(key[1:]) - 1]
                longest = max(dict(delays)[gemm] for order in orders for delays in (order.delays, *order.aliases))
                resolved[gemm] = min(delay, longest)
        elif key in gemms:
            resolved[key] = delay
        else:
            message = f"a delay is pinned for {key!r}, which is no off-chain product of role {role.name}"
            notes = [f"off-chain products: {', '.join(gemms) or 'none'}"]
            raise QlagenError("E-PIN", message, notes=notes, hints=did_you_mean(key, gemms))
    return resolved


def _no_such_order(role: RoleSteps, orders: Sequence[Order], pins: Mapping[str, int]) -> QlagenError:
    text = ", ".join(f"{name} = {delay}" for name, delay in pins.items())
    notes = ["candidates: " + "; ".join(", ".join(f"{n} = {d}" for n, d in order.delays) for order in orders)]
    message = f"no candidate order of role {role.name} has the pinned delays {text}"
    return QlagenError("E-PIN", message, notes=notes, hints=["pin the delays of one of the candidates"])
