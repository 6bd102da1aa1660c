"""Sequences, cut into segments of whole chunks, as the kernels' tables say it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Sequences:
    """Where each sequence begins and ends, and after which of its chunks it is cut.

    `cuts` has for each sequence the numbers of chunks before every cut, rising and within the sequence; empty: no
    sequence is cut. `unused` segments follow the last one.
    """

    offsets: tuple[int, ...]
    chunk: int
    cuts: tuple[tuple[int, ...], ...] = ()
    unused: int = 0

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    @property
    def segments(self) -> int:
        return self.count + sum(map(len, self.cuts)) + self.unused

    @property
    def joints(self) -> int:
        """Rows of what a segment leaves for the next one: none for the last segment of a sequence."""
        return self.segments - self.count

    def chunks(self) -> list[tuple[int, int]]:
        """(first token, valid rows) of every chunk, sequence by sequence."""
        found = []
        for first, end in zip(self.offsets, self.offsets[1:], strict=False):
            found += [(start, min(self.chunk, end - start)) for start in range(first, end, self.chunk)]
        return found

    def slots(self, tokens: int) -> int:
        """Chunk slots that a caller who knows only the number of tokens must provide."""
        return tokens // self.chunk + self.count

    def tables(self, tokens: int) -> dict[str, list[int]]:
        """All tables by name: chunk_first and chunk_rows of every slot (unused ones have no rows), segment_offsets and
        segment_chunks with an end, segment_sequence with -1 for unused segments."""
        chunks = self.chunks()
        free = self.slots(tokens) - len(chunks)
        offsets, slots, numbers = [0], [0], []
        for number, (first, end) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
            length, base = -((first - end) // self.chunk), slots[-1]
            inner = self.cuts[number] if self.cuts else ()
            offsets += [*(first + cut * self.chunk for cut in inner), end]
            slots += [*(base + cut for cut in inner), base + length]
            numbers += [number] * (len(inner) + 1)
        return {
            "chunk_first": [first for first, _ in chunks] + [0] * free,
            "chunk_rows": [rows for _, rows in chunks] + [0] * free,
            "segment_offsets": offsets + offsets[-1:] * self.unused,
            "segment_chunks": slots + slots[-1:] * self.unused,
            "segment_sequence": numbers + [-1] * self.unused,
        }


def even_cuts(offsets: tuple[int, ...], chunk: int, pieces: int) -> tuple[tuple[int, ...], ...]:
    """Cuts of every sequence into so many segments, as even as whole chunks allow; fewer where there are not so many
    chunks."""
    cuts = []
    for first, end in pairwise(offsets):
        chunks = -((first - end) // chunk)
        parts = max(1, min(pieces, chunks))
        cuts.append(tuple(chunks * part // parts for part in range(1, parts)))
    return tuple(cuts)


def join_segments(state: Any, joined: Any, numbers: Any, shape: tuple[int, int]) -> None:
    """Gives every segment but the last of its sequence the state that it ends with, in place, in float64.

    `state` fp32 [joints, heads, (V + K) * K]: rows of K entries, V of the state and then K of the map, both
    transposed; `joined` [joints, heads]; `numbers` [segments]: each one's sequence, -1 for none; `shape` (K, V).
    """
    keys, values = shape
    rows = state.view(*state.shape[:2], values + keys, keys)
    for segment in range(1, len(numbers) - 1):
        before, own, after = (int(number) for number in numbers[segment - 1 : segment + 2])
        if own < 0 or before != own or after != own:
            continue
        joint = segment - own
        for head in range(state.shape[1]):
            if joined[joint, head]:
                mine, turned = rows[joint, head, :values].double(), rows[joint, head, values:].double()
                rows[joint, head, :values] = mine + rows[joint - 1, head, :values].double() @ turned
