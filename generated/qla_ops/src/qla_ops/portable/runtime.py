"""The driver that the portable implementations share: cuts tokens into chunks, walks the chunks, puts rows back.

Tensors of the caller are [B, T, heads, ...]. Inside, all chunks of all sequences lie along the first axis:
[slots, heads, C, ...]. The slots of chunk 0 of every sequence come first, then those of chunk 1, and so on, each time
the longest sequences first, so that one step of the walk takes a contiguous range of slots. Rows past a sequence's end
are zeros that nothing else can reach: sequences share no slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FORGETS = {torch.float32: -128.0, torch.float64: -800.0}
"""A log gate below it is taken as it: its exponential is zero in the type, and minus infinity stays finite."""


def compute_type(*data: Tensor) -> torch.dtype:
    """float64 if any of the tensors is, else float32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in data) else torch.float32


@dataclass(frozen=True)
class Chunks:
    """Where the chunks of one call lie."""

    batch: int
    tokens: int
    heads: int
    """Value heads."""
    dtype: torch.dtype
    """Of the computation."""
    data_type: torch.dtype
    """Of the output."""
    rows: Tensor
    """[slots, C] rows of the flattened [B * T] token axis."""
    valid: Tensor
    """[slots, C] False past a sequence's end."""
    sequences: int
    order: Tensor | None
    """[N] sequences, the longest first; None when they are in that order already."""
    counts: tuple[int, ...]
    """Sequences that have chunk 0, 1, ...; they are the first ones in `order`."""

    def gather(self, x: Tensor) -> Tensor:
        """[B, T, H, ...] to [slots, heads, C, ...] in the type of the computation; heads repeat in groups."""
        return self._cut(x.to(self.dtype))

    def gather_log_gate(self, x: Tensor) -> Tensor:
        """[B, T, H] to [slots, heads, C], bounded below. Sums of gates lose digits that small decays need, so they are
        kept in float64 where the device has it."""
        dtype = self.dtype if x.device.type == "mps" else torch.float64
        return self._cut(x.to(dtype).clamp(min=FORGETS[self.dtype]))

    def _cut(self, x: Tensor) -> Tensor:
        chosen = x.flatten(0, 1)[self.rows]
        unused = ~self.valid.view(*self.valid.shape, *[1] * (chosen.ndim - 2))
        chosen = chosen.masked_fill(unused, 0).transpose(1, 2)
        repeats = self.heads // max(1, chosen.shape[1])
        return chosen if repeats == 1 else chosen.repeat_interleave(repeats, dim=1)

    def scatter(self, chunks: Sequence[Tensor], width: int) -> Tensor:
        """Outputs of all steps, [slots of the step, heads, C, width], to [B, T, heads, width]; unused rows are zero."""
        unused = self.batch * self.tokens
        output = torch.zeros(unused + 1, self.heads, width, dtype=self.data_type, device=self.rows.device)
        if chunks:
            rows = self.rows.masked_fill(~self.valid, unused)
            values = torch.cat(list(chunks)).to(self.data_type).transpose(1, 2)
            output = output.index_copy(0, rows.flatten(), values.flatten(0, 1))
        return output[:unused].view(self.batch, self.tokens, self.heads, width)

    def start(self, initial_state: Tensor | None, dims: tuple[int, int]) -> Tensor:
        """The states before the first chunk, [N, heads, *dims], in the walk's order."""
        if initial_state is None:
            return torch.zeros(self.sequences, self.heads, *dims, dtype=self.dtype, device=self.rows.device)
        state = initial_state.to(self.dtype)
        return state if self.order is None else state[self.order]

    def finish(self, state: Tensor) -> Tensor:
        """The states after the last chunk, in the caller's order, never the caller's own tensor."""
        if self.order is None:
            return state if self.counts else state.clone()
        return state[torch.argsort(self.order)]

    def walk(
        self, step: Callable[..., tuple[Tensor, Tensor]], state: Tensor, values: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """One step per chunk index, of all sequences that have such a chunk; then the state of those that end leaves.

        `step` takes states and the slots of `values`, and returns outputs and next states.
        """
        outputs: list[Tensor] = []
        finished: list[Tensor] = []
        first, walking = 0, self.sequences
        for count in self.counts:
            if count < walking:
                finished.append(state[count:])
                state, walking = state[:count], count
            last = first + count
            output, state = step(state, *(value[first:last] for value in values))
            outputs.append(output)
            first = last
        return outputs, torch.cat([state, *reversed(finished)]) if finished else state


def cut(like: Tensor, cu_seqlens: Tensor | None, chunk: int, *, heads: int, dtype: torch.dtype) -> Chunks:
    """The chunks of tensors [B, T, ...] like this one, which gives the output its type.

    `chunk` tokens each, or fewer when every sequence is shorter.
    """
    batch, tokens = like.shape[:2]
    offsets = [i * tokens for i in range(batch + 1)] if cu_seqlens is None else cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(offsets)]
    longest_first = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    chunk = min(chunk, max([1, *lengths]))
    counts = _counts([-(-lengths[n] // chunk) for n in longest_first])
    places = torch.tensor(offsets, dtype=torch.int64, device=like.device)
    starts, ends = places[:-1], places[1:]
    order = None
    if longest_first != list(range(len(lengths))):
        order = torch.tensor(longest_first, dtype=torch.int64, device=like.device)
        starts, ends = starts[order], ends[order]
    firsts = [starts[:count] + i * chunk for i, count in enumerate(counts)]
    lasts = [ends[:count] for count in counts]
    rows = torch.cat([starts[:0], *firsts])[:, None] + torch.arange(chunk, device=like.device)
    valid = rows < torch.cat([ends[:0], *lasts])[:, None]
    rows = rows.masked_fill(~valid, 0)
    return Chunks(batch, tokens, heads, dtype, like.dtype, rows, valid, len(lengths), order, counts)


def _counts(chunks: list[int]) -> tuple[int, ...]:
    """How many sequences have chunk 0, 1, ..., from how many chunks each has, falling."""
    counts: list[int] = []
    active = len(chunks)
    for index in range(max([0, *chunks])):
        while chunks[active - 1] <= index:
            active -= 1
        counts.append(active)
    return tuple(counts)


# Decay atoms of a cumulative log gate G [slots, heads, C]. No exponent is positive.


def from_start(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G), [slots, heads, C]"""
    return gate.to(dtype).exp()


def to_end(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G_last - G), [slots, heads, C]"""
    return (gate[..., -1:] - gate).to(dtype).exp()


def total(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G_last), [slots, heads]"""
    return gate[..., -1].to(dtype).exp()


def decay(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G_i - G_j) where i >= j, else 0; [slots, heads, C, C]"""
    difference = gate[..., :, None] - gate[..., None, :]
    later = ~lower(difference, torch.bool)
    return difference.to(dtype).masked_fill(later, -torch.inf).exp()


# Matrices


def lower(like: Tensor, dtype: torch.dtype) -> Tensor:
    """[C, C] ones where i >= j, else 0; C is the length of the next to last axis."""
    length = like.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril().to(dtype)


def strict(like: Tensor, dtype: torch.dtype) -> Tensor:
    """[C, C] ones where i > j, else 0; C is the length of the next to last axis."""
    length = like.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril(-1).to(dtype)


def inv_unit_lower(matrix: Tensor) -> Tensor:
    """(I + L)^-1 of strictly lower L [slots, heads, C, C], by substitution."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.solve_triangular(matrix, identity.expand_as(matrix), upper=False, unitriangular=True)
