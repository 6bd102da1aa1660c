"""A model of the time that kernels with a state take for sequences that are cut into segments.

`plan` weighs plans by it on the host. `tables.cu` has the same formula: it weighs the lengths of packed sequences,
which the host does not know. All numbers are integers, so that both agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

SHARES = 1024
"""What `Weights.share` is a part of."""
CANDIDATES = tuple(range(1, 9)) + tuple((5 + i % 4) << (i // 4 + 1) for i in range(24))
"""Numbers of segments of the longest sequence that are weighed: 1 to 8, then four in each power of two, up to 512."""
LONG = 1024
"""With more sequences than this that could be cut the GPU is full, and `tables.cu` cuts none."""

Groups = tuple[tuple[int, int], ...]
"""Lengths of sequences: (how many, chunks of each)."""


class Weights(NamedTuple):
    """What the times of a plan are made of, as integers; times in nanoseconds. `tables.cu` takes them by name."""

    forward_chunk: int
    """Of a forward CTA for a chunk."""
    forward_ctas: int
    """For each segment: value heads times value tiles."""
    forward_slots: int
    """Forward CTAs that run at once."""
    segment_chunk: int
    segment_alone: int
    """The same of a CTA that has an SM to itself."""
    state_ctas: int
    """Of the segment kernel for each segment but the last of its sequence."""
    map_ctas: int
    """And for those that are not the first either."""
    segment_slots: int
    join_step: int
    join_ctas: int
    """For each sequence of three segments or more."""
    processors: int
    start: int
    share: int
    """Heads, of 1024, whose segments need a map."""
    warm_chunks: int


@dataclass(frozen=True)
class Cut:
    """Sums over sequences of which each is cut into balanced segments; l is a segment's chunks at most."""

    segments: int
    longest: int
    """Largest l."""
    joints: int
    """Segments that are not the last of their sequence."""
    inner: int
    """Those that are not the first either."""
    joint_chunks: int
    """Sum of l over the joints."""
    inner_chunks: int
    warm_chunks: int
    """Sum over the joints of l, but `Weights.warm_chunks` at most."""
    longest_joint: int
    """Largest l of a sequence with a joint."""
    most: int
    """Segments of one sequence at most."""
    chains: int
    """Sequences of three segments or more."""


def cut_groups(groups: Iterable[tuple[int, int]], length: int, parts: int, warm: int) -> Cut:
    """Sequences cut into n = max(1, ceil(chunks / length)) segments, or, where `parts` is given, min(parts, chunks)."""
    sums = dict.fromkeys((field.name for field in fields(Cut)), 0)
    for count, chunks in groups:
        n = max(1, min(parts, chunks) if parts else -(-chunks // length))
        most_chunks = -(-chunks // n)
        joints, inner = count * (n - 1), count * max(n - 2, 0)
        sums["segments"] += count * n
        sums["longest"] = max(sums["longest"], most_chunks)
        sums["joints"] += joints
        sums["inner"] += inner
        sums["joint_chunks"] += joints * most_chunks
        sums["inner_chunks"] += inner * most_chunks
        sums["warm_chunks"] += joints * min(most_chunks, warm)
        sums["longest_joint"] = max(sums["longest_joint"], most_chunks if n > 1 else 0)
        sums["most"] = max(sums["most"], n)
        sums["chains"] += count if n > 2 else 0
    return Cut(**sums)


def span(ctas: int, work: int, chain: int, slots: int) -> int:
    """Time of CTAs of which `slots` run at once, the longest for `chain`, all together for `work`.

    CTAs of about one length run in turns. Otherwise the longest one starts, on average, when half of the rest is done.
    """
    turns = -(-ctas // slots) * chain
    if ctas <= slots or work >= ctas * chain - ctas * chain // 8:
        return turns
    return min(turns, max(chain, work // slots + chain // 2))


def forward_time(weights: Weights, cut: Cut, chunks: int) -> int:
    """Nanoseconds of the forward kernel; `chunks` of all sequences."""
    chain = cut.longest * weights.forward_chunk + weights.start
    work = (chunks * weights.forward_chunk + cut.segments * weights.start) * weights.forward_ctas
    return span(cut.segments * weights.forward_ctas, work, chain, weights.forward_slots)


def segment_time(weights: Weights, cut: Cut) -> int:
    """Nanoseconds of the segment kernel: heads that forget run a few chunks, others all, and their map's too."""
    if cut.joints == 0:
        return 0
    ctas = cut.joints * weights.state_ctas + cut.inner * weights.map_ctas * weights.share // SHARES
    chunk = weights.segment_alone if ctas <= weights.processors else weights.segment_chunk
    whole = weights.state_ctas * (cut.joint_chunks * chunk + cut.joints * weights.start)
    whole += weights.map_ctas * (cut.inner_chunks * chunk + cut.inner * weights.start)
    short = weights.state_ctas * (cut.warm_chunks * chunk + cut.joints * weights.start)
    work = (weights.share * whole + (SHARES - weights.share) * short) // SHARES
    return span(ctas, work, cut.longest_joint * chunk + weights.start, weights.segment_slots)


def join_time(weights: Weights, cut: Cut) -> int:
    """Nanoseconds of the join kernel: one step after another for the segments between the first and the last."""
    ctas = cut.chains * weights.join_ctas * weights.share // SHARES
    return max(cut.most - 2, 0) * weights.join_step * max(1, -(-ctas // weights.processors))


def segment_count(lengths: Iterable[int], length: int) -> int:
    """Of sequences of `lengths` chunks in segments of `length` chunks at most."""
    return sum(max(1, -(-chunks // length)) for chunks in lengths)


def candidate_lengths(longest: int) -> Iterator[int]:
    """Chunks per segment that are weighed, falling; `longest`: chunks of the longest sequence."""
    last = 0
    for parts in CANDIDATES:
        length = max(1, -(-longest // parts))
        if length != last:
            yield length
        last = length


def choose_length(lengths: Sequence[int], segments: int, weights: Weights) -> int:
    """What `tables.cu` chooses for sequences of `lengths` chunks: chunks per segment of the cheapest cut into
    `segments` at most, the longest on a tie."""
    longest, chunks = max(lengths, default=0), sum(lengths)
    tried = [length for length in candidate_lengths(longest) if length * segments >= chunks]
    if sum(chunks > min(tried) for chunks in lengths) > LONG:
        return max(1, longest)
    groups = [(1, each) for each in lengths]
    cuts = [(length, cut_groups(groups, length, 0, weights.warm_chunks)) for length in tried]
    prices = [
        (forward_time(weights, cut, chunks) + segment_time(weights, cut) + join_time(weights, cut), length)
        for length, cut in cuts
        if cut.segments <= segments
    ]
    return min(prices, key=lambda item: item[0])[1]
