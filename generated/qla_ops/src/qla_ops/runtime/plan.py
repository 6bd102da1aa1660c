"""Into how many segments sequences are cut, and which variants of the kernels run them: the plan of a call.

A kernel that carries a state has a CTA for each sequence, value head and tile of value columns. Few of them leave the
GPU idle, so sequences are cut into segments that run at once: one pass makes the state that each segment leaves behind
when it starts from zero, and its map where its gates do not forget; then the states are carried through the maps; then
the forward kernel runs all segments. That is more work in less time, or not: a model of the time decides. Its numbers
come from the target's file (see `costs` and `Kernel.chunk_nanoseconds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from qla_ops.runtime import costs
from qla_ops.runtime.model import (
    SHARES,
    Cut,
    Groups,
    Weights,
    candidate_lengths,
    cut_groups,
    forward_time,
    join_time,
    segment_time,
)
from qla_ops.runtime.records import Kernel, Operator

JOIN_COLUMNS = 16
"""Value columns of a CTA of `join.cu`."""
JOIN_KEYS = (64, 128)
"""K that it is written for."""
JOIN_HALVES = 10
"""Of its rows in a chain, from how many on it walks the chain in halves."""
AUTOMATIC, NEVER = 0, 1
"""`parts` of a call beside 2, 3, ...: the model decides; sequences stay whole."""


class Cutting(NamedTuple):
    """How packed sequences are to be cut on the device."""

    segments: int
    """At most, all together; never fewer than sequences."""
    parts: int
    """Of each sequence, where its chunks allow; `AUTOMATIC`: the cheapest cut."""
    weights: Weights
    length: int = 0
    """Chunks of a segment at most in the cheapest cut, where the host knows it; 0: the device looks for it."""


CUT_NOTHING = Cutting(0, NEVER, Weights(*(0 for _ in Weights._fields)))


@dataclass(frozen=True)
class Times:
    """Modelled times of a plan's kernels, in nanoseconds; the prepare kernels are the same in every plan."""

    forward: int
    segment: int = 0
    join: int = 0
    idle: int = 0
    """Launches, CTAs without work, and weighing the lengths on the device."""

    @property
    def total(self) -> int:
        return self.forward + self.segment + self.join + self.idle


@dataclass(frozen=True)
class Plan:
    forward: Kernel
    segment: Kernel | None
    """None: sequences stay whole."""
    cutting: Cutting
    """For packed sequences."""
    parts: int
    """Segments of each sequence; for packed ones `AUTOMATIC` where the device decides."""
    turns: int
    """2: segments that are walked as a whole come first in the segment kernel, then those that only warm up."""
    times: tuple[Times, ...]
    """For each distribution of lengths that was weighed."""


def idle_time(weights: Weights, cut: Cut, segments: int) -> int:
    """Nanoseconds of two more launches, and of the segment kernel's CTAs without work in a grid for `segments`."""
    busy = cut.joints * weights.state_ctas + cut.inner * weights.map_ctas * weights.share // SHARES
    empty = segments * (weights.state_ctas + weights.map_ctas) - busy
    return 2 * costs.LAUNCH + costs.EMPTY * empty // weights.segment_slots


def segment_turns(weights: Weights, cut: Cut) -> int:
    """Of the segment kernel's CTAs. The longest ones first pays where not all run at once and what they take is long
    beside what it costs to start twice as many."""
    waiting = cut.segments * (weights.state_ctas + weights.map_ctas) > weights.segment_slots
    return 2 if waiting and cut.longest_joint >= costs.TURN_CHUNKS and weights.share < SHARES else 1


def choose_plan(
    operator: Operator,
    sequences: int,
    tokens: int,
    value_heads: int,
    processors: int,
    packed: bool,
    parts: int,
    known: Groups | None = None,
) -> Plan:
    """The plan of a call. `tokens`: of all sequences; packed ones may have any lengths, others are equally long.

    Where the lengths of packed sequences are not `known` to the host, all equal and one long sequence among very short
    ones are weighed, and the plan is taken that loses least against the best one for each, on average.
    """
    distributions = (known,) if known is not None else _distributions(operator.chunk, sequences, tokens, packed)
    limit = tokens // operator.chunk + sequences
    guessed = packed and known is None
    plans = list(_plans(operator, distributions, value_heads, processors, parts, limit, packed, guessed))
    best = [min(plan.times[i].total for plan in plans) for i in range(len(distributions))]
    rare = costs.LONG_PERCENT / 100 if len(distributions) > 1 else 0.0
    losses = []
    for plan in plans:
        even, *long = (times.total / max(1, least) for times, least in zip(plan.times, best, strict=True))
        losses.append((1 - rare) * even + rare * sum(long))
    good = min(losses) * (1 + costs.TIE_PERCENT / 100)
    return next(plan for plan, loss in zip(plans, losses, strict=True) if loss <= good)


def _distributions(chunk: int, sequences: int, tokens: int, packed: bool) -> tuple[Groups, ...]:
    if not packed:
        return (((sequences, -(-tokens // (sequences * chunk))),),)
    chunks = max(1, tokens // chunk)
    even: Groups = ((sequences, -(-chunks // sequences)),)
    long: Groups = ((1, max(1, chunks - sequences + 1)), (sequences - 1, 1))
    return (even, long) if sequences > 1 else (even,)


def _plans(
    operator: Operator,
    distributions: Sequence[Groups],
    value_heads: int,
    processors: int,
    parts: int,
    limit: int,
    packed: bool,
    guessed: bool,
) -> Iterator[Plan]:
    """Plans worth weighing, the simplest first: fewer kernels, then wider tiles."""
    forwards, segments = variants(operator, "carried"), variants(operator, "segment")
    parts = parts if can_cut(operator) else NEVER
    whole = [cut_groups(groups, 0, 1, 0) for groups in distributions]
    totals = [sum(count * chunks for count, chunks in groups) for groups in distributions]
    for forward in forwards if parts in (AUTOMATIC, NEVER) else ():
        weights = _weights(operator, forward, None, value_heads, processors)
        times = tuple(Times(forward_time(weights, cut, chunks)) for cut, chunks in zip(whole, totals, strict=True))
        yield Plan(forward, None, Cutting(whole[0].segments, NEVER, weights), NEVER, 1, times)
    if parts == NEVER:
        return
    # Four times what runs at once is fine enough: more segments only cost more.
    enough = 4 * processors // value_heads
    cuts = [_cuts(groups, parts, enough) for groups in distributions]
    for forward, segment in product(forwards, segments):
        weights = _weights(operator, forward, segment, value_heads, processors)
        found = [_cheapest(weights, some, chunks) for some, chunks in zip(cuts, totals, strict=True)]
        count = max(cut.segments for _, cut, _ in found)
        if guessed and parts:
            count = max(whole[0].segments, min(whole[0].segments * parts, limit))
        if count > whole[0].segments:
            search = costs.SEARCH if guessed and not parts else 0
            times = tuple(replace(time, idle=search + idle_time(weights, cut, count)) for _, cut, time in found)
            chosen = parts if packed else found[0][1].most
            cutting = Cutting(count, parts, weights, 0 if guessed else found[0][0])
            yield Plan(forward, segment, cutting, chosen, segment_turns(weights, found[0][1]), times)
        elif parts:
            yield Plan(forward, None, Cutting(count, NEVER, weights), NEVER, 1, tuple(time for *_, time in found))


def _cuts(groups: Groups, parts: int, enough: int) -> list[tuple[int, Cut]]:
    """The cuts that are weighed for sequences of known lengths, the coarsest first, each behind the chunks of a segment
    at most (0 where a number of segments is asked for)."""
    if parts:
        return [(0, cut_groups(groups, 0, parts, costs.WARM_CHUNKS))]
    cuts = []
    for length in candidate_lengths(max(chunks for _, chunks in groups)):
        cuts.append((length, cut_groups(groups, length, 0, costs.WARM_CHUNKS)))
        if cuts[-1][1].segments > enough:
            break
    return cuts


def _cheapest(weights: Weights, cuts: Sequence[tuple[int, Cut]], chunks: int) -> tuple[int, Cut, Times]:
    """The cheapest cut, the coarser one on a tie, and its times."""
    found = [
        (length, cut, Times(forward_time(weights, cut, chunks), segment_time(weights, cut), join_time(weights, cut)))
        for length, cut in cuts
    ]
    return min(found, key=lambda item: item[2].total)


def can_cut(operator: Operator) -> bool:
    """Whether the operator has kernels for segments and `join.cu` takes its sizes."""
    sizes = operator.sizes
    return bool(variants(operator, "segment")) and sizes["K"] in JOIN_KEYS and sizes["V"] % JOIN_COLUMNS == 0


def variants(operator: Operator, kind: str) -> tuple[Kernel, ...]:
    """Its kernels of a kind, the widest value tile first; see `only`."""
    found = [kernel for kernel in operator.kernels if kernel.kind == kind]
    named = [kernel for kernel in found if kernel.module.rpartition(".")[2] in _ONLY]
    return tuple(sorted(named or found, key=lambda kernel: -kernel.value_tile))


_ONLY: set[str] = set()


@contextmanager
def only(*names: str) -> Iterator[None]:
    """Inside it, plans of operators that have kernels of these file names (``forward_v64``, ``segment_v128``) use no
    other variants of them. For measuring and tests; it counts for all threads."""
    before = set(_ONLY)
    _ONLY.update(names)
    try:
        yield
    finally:
        _ONLY.clear()
        _ONLY.update(before)


def forced() -> frozenset[str]:
    """The names that `only` was given; whoever remembers plans must remember them too."""
    return frozenset(_ONLY)


def _weights(operator: Operator, forward: Kernel, segment: Kernel | None, value_heads: int, processors: int) -> Weights:
    value_dim, key_dim = operator.sizes["V"], operator.sizes["K"]
    weights = Weights(
        forward_chunk=forward.chunk_nanoseconds[0],
        forward_ctas=cta_count(forward, value_dim, value_heads),
        forward_slots=processors * forward.ctas_per_sm,
        segment_chunk=0,
        segment_alone=0,
        state_ctas=0,
        map_ctas=0,
        segment_slots=1,
        join_step=costs.JOIN,
        join_ctas=value_heads * -(-value_dim // JOIN_COLUMNS),
        processors=processors,
        start=costs.START,
        share=0,
        warm_chunks=costs.WARM_CHUNKS,
    )
    if segment is None:
        return weights
    skips = operator.segments is not None and operator.segments.skips
    return weights._replace(
        segment_chunk=segment.chunk_nanoseconds[0],
        segment_alone=segment.chunk_nanoseconds[1],
        state_ctas=cta_count(segment, value_dim, value_heads),
        map_ctas=cta_count(segment, key_dim, value_heads),
        segment_slots=processors * segment.ctas_per_sm,
        share=SHARES * costs.UNDECAYED_PERCENT // 100 if skips else SHARES,
    )


def join_items(operator: Operator, chains: int, value_heads: int, joints: int, processors: int) -> int:
    """What the CTAs of `join.cu` share. Where it may walk chains in halves, there is work for all."""
    items = chains * value_heads * -(-operator.sizes["V"] // JOIN_COLUMNS)
    return max(items, processors) if items and join_rooms(operator, joints, processors) else items


def join_rooms(operator: Operator, joints: int, processors: int) -> int:
    """Heads whose chains it walks in halves at most, all at once; 0 where no chain is long enough. Each takes CTAs for
    both halves' values and a map, and, behind them, two for each block of columns."""
    ctas = (4 * operator.sizes["V"] + operator.sizes["K"]) // JOIN_COLUMNS
    return processors // ctas if joints > JOIN_HALVES else 0


def cta_count(kernel: Kernel, columns: int, sequence_heads: int) -> int:
    """CTAs of a kernel with a carried state; its items where the grid is persistent."""
    return sequence_heads * -(-columns // kernel.value_tile)
