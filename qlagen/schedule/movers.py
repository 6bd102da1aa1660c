"""Mover warps: which ring is filled or drained by which warp, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qlagen.errors import QlagenError
from qlagen.schedule.issue import Line
from qlagen.schedule.model import Ring
from qlagen.schedule.rings import LOADER, store_role


@dataclass(frozen=True)
class MoverGroup:
    """Rings of one kind that a warp moves together: their loads are announced at once."""

    rings: tuple[str, ...]
    direction: str
    """``load`` or ``store``."""
    kind: str
    """``tile`` (TMA) or ``vector`` (lanes)."""


@dataclass(frozen=True)
class MoverWarp:
    name: str
    groups: tuple[MoverGroup, ...]


def assign_movers(
    rings: Sequence[Ring], orders: Mapping[str, Sequence[Line]], limit: int, spread: bool = False
) -> tuple[tuple[MoverWarp, ...], tuple[Ring, ...]]:
    """Mover warps, and the rings with their movers as producers and consumers. `spread`: warps that the limit leaves
    take rings from others. Raises E-MOVERS when even shared warps are more than `limit`."""
    loads = _load_groups(rings, orders)
    stores = [MoverGroup((ring.name,), "store", _kind(ring)) for ring in _stored(rings, orders)]
    warps: list[tuple[MoverGroup, ...]] = [(group,) for group in (*loads, *stores)]
    while spread and len(warps) < limit and (place := _divisible(warps)) is not None:
        (group,) = warps[place]
        halves = (replace(group, rings=group.rings[:-1]), replace(group, rings=group.rings[-1:]))
        warps[place : place + 1] = [(half,) for half in halves]
    while len(warps) > limit:
        pair = _cheapest_pair(warps)
        if pair is None:
            message = f"{len(warps)} mover warps are needed, at most {limit} are allowed"
            raise QlagenError("E-MOVERS", message, hints=["one warp cannot both load and store: raise mover_warps"])
        first, second = pair
        warps[first] = (*warps[first], *warps[second])
        del warps[second]
    named = tuple(MoverWarp(_name(groups), groups) for groups in warps)
    return named, _with_movers(rings, named)


def _stored(rings: Iterable[Ring], orders: Mapping[str, Sequence[Line]]) -> list[Ring]:
    """Rings to store, in the order in which they are filled: a warp that stores several does so as they come."""
    steps = [line.step for lines in orders.values() for line in lines if line.step is not None]
    filled = {step.ring_out: position for position, step in enumerate(steps)}
    return sorted((ring for ring in rings if ring.store is not None), key=lambda ring: filled[ring.name])


def _kind(ring: Ring) -> str:
    return "tile" if len(ring.shape) == 2 else "vector"


def _name(groups: Iterable[MoverGroup]) -> str:
    parts = [ring for group in groups for ring in group.rings]
    return "_".join([next(iter(groups)).direction, *parts])


def _first_uses(orders: Mapping[str, Sequence[Line]]) -> tuple[dict[str, int], frozenset[str]]:
    """Where each ring is first read, the earliest over roles; and the rings that some role reads before all others."""
    first: dict[str, int] = {}
    starters: set[str] = set()
    for lines in orders.values():
        reading = [line.step.rings for line in lines if line.step is not None and line.step.rings]
        starters.update(reading[0] if reading else ())
        for position, rings in enumerate(reading):
            for ring in rings:
                first[ring] = min(position, first.get(ring, position))
    return first, frozenset(starters)


def _load_groups(rings: Sequence[Ring], orders: Mapping[str, Sequence[Line]]) -> list[MoverGroup]:
    """Loads with the same consumers and kind, in order of first use. What an iteration starts with is not held up by
    what is needed later."""
    first, starters = _first_uses(orders)
    loads = sorted((r for r in rings if r.producer == LOADER), key=lambda r: first[r.name])
    groups: dict[tuple[object, ...], list[str]] = {}
    for ring in loads:
        starter = ring.load.name if ring.load is not None and ring.load.key == 0 else None
        starts = _kind(ring) == "tile" and (starter is None or starter in starters)
        groups.setdefault((ring.consumers, ring.stage_class, _kind(ring), starts), []).append(ring.name)
    return [MoverGroup(tuple(names), "load", str(key[2])) for key, names in groups.items()]


def _divisible(warps: Sequence[tuple[MoverGroup, ...]]) -> int | None:
    """The warp whose tiles are needed last, of those that load several; the first ones start an iteration together."""
    several = [i for i, (group,) in enumerate(warps) if group.direction == "load" and len(group.rings) > 1]
    return max((i for i in several if i > 0 and warps[i][0].kind == "tile"), default=None)


def _cheapest_pair(warps: Sequence[tuple[MoverGroup, ...]]) -> tuple[int, int] | None:
    """Two warps to join: vectors first, then stores (nothing waits for them), then loads; never both directions."""
    best: tuple[int, int, int] | None = None
    for first in range(len(warps)):
        for second in range(first + 1, len(warps)):
            groups = (*warps[first], *warps[second])
            if len({group.direction for group in groups}) > 1:
                continue
            tiles = sum(group.kind == "tile" for group in groups)
            cost = 10 * len(groups) + (4 * tiles if groups[0].direction == "load" else tiles)
            if best is None or cost < best[0]:
                best = (cost, first, second)
    return None if best is None else best[1:]


def _with_movers(rings: Iterable[Ring], warps: Iterable[MoverWarp]) -> tuple[Ring, ...]:
    mover = {(group.direction, ring): warp.name for warp in warps for group in warp.groups for ring in group.rings}
    result = []
    for ring in rings:
        producer = mover["load", ring.name] if ring.producer == LOADER else ring.producer
        names = {store_role(ring.name): mover.get(("store", ring.name), "")}
        result.append(replace(ring, producer=producer, consumers=tuple(names.get(c, c) for c in ring.consumers)))
    return tuple(result)
