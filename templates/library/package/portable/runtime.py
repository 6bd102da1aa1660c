"""The driver that the portable implementations share: cuts tokens into chunks, walks the chunks, puts rows back.

Tensors of the caller are [B, T, heads, ...]. Inside, all chunks of all sequences lie along the first axis:
[slots, heads, C, ...]. The slots of chunk 0 of every sequence come first, then those of chunk 1, and so on, each time
the longest sequences first, so that one step of the walk takes a contiguous range of slots. Rows past a sequence's end
are zeros that nothing else can reach: sequences share no slot. What is given for each step of a token has the steps of
all tokens as rows, in order.
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

    def gather(self, x: Tensor, per_step: bool = False) -> Tensor:
        """[B, T, H, ...] to [slots, heads, C, ...] in the type of the computation; heads repeat in groups. With
        `per_step` [B, T, H, steps, ...] to [slots, heads, C * steps, ...]."""
        return self._cut(x.to(self.dtype), per_step)

    def gather_log_gate(self, x: Tensor, per_step: bool = False) -> Tensor:
        """The same, bounded below. Sums of gates lose digits that small decays need, so they are kept in float64 where
        the device has it."""
        dtype = self.dtype if x.device.type == "mps" else torch.float64
        return self._cut(x.to(dtype).clamp(min=FORGETS[self.dtype]), per_step)

    def _cut(self, x: Tensor, per_step: bool) -> Tensor:
        chosen = x.flatten(0, 1)[self.rows]
        unused = ~self.valid.view(*self.valid.shape, *[1] * (chosen.ndim - 2))
        chosen = chosen.masked_fill(unused, 0).transpose(1, 2)
        chosen = chosen.flatten(2, 3) if per_step else chosen
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


# Decay atoms of a cumulative log gate G, [slots, heads, C] or, with a value for each channel, [slots, heads, C, K].
# `axis` is that of the rows. No exponent is positive. A gate before each row's own decay, B = before(G), has G of the
# row above; what reads it leaves the diagonal out, where the exponent of a column's decay would be positive.


def before(gate: Tensor, axis: int) -> Tensor:
    """The rows of G, each one further down; zero in the first."""
    above = gate.narrow(axis, 0, gate.shape[axis] - 1)
    return torch.cat([torch.zeros_like(gate.narrow(axis, 0, 1)), above], axis)


def from_start(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G), in the shape of G"""
    return gate.to(dtype).exp()


def to_end(gate: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
    """exp(G_last - G), in the shape of G"""
    return (gate.narrow(axis, -1, 1) - gate).to(dtype).exp()


def total(gate: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
    """exp(G_last), without the rows"""
    return gate.select(axis, -1).to(dtype).exp()


def decay(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G_i - G_j) where i >= j, else 0; [slots, heads, C, C]"""
    return _between(gate[..., None], gate[..., None], dtype, 0).squeeze(-1)


def decay_before(gate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(B_i - G_j) where i > j, else 0; [slots, heads, C, C]"""
    return _between(gate[..., None], _own(gate[..., None]), dtype, -1).squeeze(-1)


def gdot(left: Tensor, right: Tensor, gate: Tensor) -> Tensor:
    """sum_c left_ic right_jc exp(G_ic - G_jc) where i >= j, else 0; [slots, heads, C, K] to [slots, heads, C, C]"""
    return _gated_product(left, right, gate, gate, 0)


def gdot_before(left: Tensor, right: Tensor, gate: Tensor) -> Tensor:
    """sum_c left_ic right_jc exp(B_ic - G_jc) where i > j, else 0; [slots, heads, C, K] to [slots, heads, C, C]"""
    return _gated_product(left, right, gate, _own(gate), -1)


BLOCK = 8
"""Rows of a block on the diagonal, where every entry has exponents of its own."""


def _own(gate: Tensor) -> Tensor:
    """G of B [..., C, K]: one row up. The last row is not known; what stands for it is read on the diagonal only."""
    return torch.cat([gate[..., 1:, :], gate[..., -1:, :]], -2)


def _between(gate: Tensor, own: Tensor, dtype: torch.dtype, diagonal: int) -> Tensor:
    """exp(gate_i - own_j) below a diagonal, else 0; [..., C, K] to [..., C, C, K]"""
    difference = gate[..., :, None, :] - own[..., None, :, :]
    rows = gate.shape[-2]
    keep = torch.ones(rows, rows, dtype=torch.bool, device=gate.device).tril(diagonal)
    return difference.to(dtype).masked_fill(~keep[..., None], -torch.inf).exp()


def _gated_product(left: Tensor, right: Tensor, gate: Tensor, own: Tensor, diagonal: int) -> Tensor:
    """Both halves of the rows, and between them a plain product whose gates refer to the seam: their exponents are not
    positive either, and no [C, C, K] values are made."""
    rows = gate.shape[-2]
    if rows <= BLOCK:
        gated = _between(gate, own, left.dtype, diagonal) * right[..., None, :, :]
        return (gated * left[..., :, None, :]).sum(-1)
    half = rows // 2
    upper = [x[..., :half, :] for x in (left, right, gate, own)]
    lower = [x[..., half:, :] for x in (left, right, gate, own)]
    seam = upper[3][..., -1:, :]
    rows_gated = lower[0] * (lower[2] - seam).to(left.dtype).exp()
    columns_gated = upper[1] * (seam - upper[3]).to(left.dtype).exp()
    first = _gated_product(upper[0], upper[1], upper[2], upper[3], diagonal)
    second = _gated_product(lower[0], lower[1], lower[2], lower[3], diagonal)
    none = first.new_zeros(*first.shape[:-1], rows - half)
    below = torch.cat([rows_gated @ columns_gated.mT, second], -1)
    return torch.cat([torch.cat([first, none], -1), below], -2)


# Rows of tokens and of their steps. `axis` is that of the rows.


def each(x: Tensor, steps: int, axis: int) -> Tensor:
    """Every row for each step of its token."""
    return x.repeat_interleave(steps, axis)


def last(x: Tensor, steps: int, axis: int) -> Tensor:
    """The rows of each token's last step."""
    rows = torch.arange(steps - 1, x.shape[axis], steps, device=x.device)
    return x.index_select(axis, rows)


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
