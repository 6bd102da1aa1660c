"""What a case must give: the chunked recurrence in float64 with PyTorch, on the GPU or the CPU.

One token: S <- exp(g) S, then S <- S + k (beta (v - S^T k))^T, and o = scale S^T q. Evaluated 64 tokens at a time
(Yang, Kautz, Hatamizadeh, arXiv 2412.06464, section 3.3); the tests compare it with a recurrence over tokens. An
operator without a gate has g = 0; one without a correction writes v itself: beta (v - S^T k) becomes v.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qlagen.bench.cases import KEY_SIZE, VALUE_SIZE
from qlagen.bench.inputs import Inputs

if TYPE_CHECKING:
    import torch

CHUNK = 64
_COPIES = {"forward": 12, "backward": 40}
"""Intermediates of the size of a head's float64 values that a slice keeps at once."""


@dataclass(frozen=True)
class _Chunks:
    """Which tokens each chunk holds: chunk n of every sequence before chunk n+1 of any, longer sequences first."""

    tokens: torch.Tensor
    """[chunks, CHUNK] token numbers, 0 in unused rows."""
    used: torch.Tensor
    """[chunks, CHUNK] bool."""
    active: tuple[int, ...]
    """How many sequences have a chunk n, for each n."""
    order: tuple[int, ...]
    """The sequences from the longest to the shortest."""


def reference_bytes(inputs: Inputs, value_heads: int) -> int:
    """An estimate of the memory that a slice of so many heads takes."""
    case = inputs.case
    rows = sum(-(-length // CHUNK) * CHUNK for length in case.lengths)
    states = len(case.lengths) + (rows // CHUNK if case.direction == "backward" else 0)
    return value_heads * 8 * (rows * VALUE_SIZE * _COPIES[case.direction] + 3 * states * KEY_SIZE * VALUE_SIZE)


def reference(inputs: Inputs, memory: int) -> Iterator[tuple[slice, slice, dict[str, torch.Tensor]]]:
    """Results in slices that take at most `memory` bytes: (key heads, value heads, float64 tensors by name).

    Forward: ``o`` and ``final_state``; backward: ``dq dk dv dg dbeta d_initial_state``. The layouts are those of
    `Inputs`, cut to the slice's heads. One key head is the smallest slice, whatever it takes.
    """
    case = inputs.case
    group = case.value_heads // case.key_heads
    step = max(1, memory // reference_bytes(inputs, group))
    chunks = _make_chunks(case.lengths, inputs.q.device)
    for first in range(0, case.key_heads, step):
        last = min(first + step, case.key_heads)
        keys, values = slice(first, last), slice(first * group, last * group)
        yield keys, values, _slice_results(inputs, keys, values, chunks)


def _slice_results(inputs: Inputs, keys: slice, values: slice, chunks: _Chunks) -> dict[str, torch.Tensor]:
    import torch

    backward = inputs.case.direction == "backward"
    parts = {
        "dq": inputs.q[0, :, keys],
        "dk": inputs.k[0, :, keys],
        "dv": inputs.v[0, :, values],
        "dg": inputs.g[0, :, values],
        "dbeta": inputs.beta[0, :, values],
        "d_initial_state": inputs.initial_state[:, values],
    }
    leaves = {name: part.double().detach().clone().requires_grad_(backward) for name, part in parts.items()}
    with torch.set_grad_enabled(backward):
        o, state = _run(tuple(leaves.values()), inputs.scale, chunks, inputs.case.traits.correction)
    if not backward:
        return {"o": o[None], "final_state": state}
    assert inputs.d_output is not None  # a backward case has them
    assert inputs.d_final_state is not None
    outer = [inputs.d_output[0, :, values].double(), inputs.d_final_state[:, values].double()]
    gradients = torch.autograd.grad([o, state], list(leaves.values()), outer)
    named = dict(zip(leaves, gradients, strict=True))
    return {name: value if name == "d_initial_state" else value[None] for name, value in named.items()}


def _run(
    leaves: tuple[torch.Tensor, ...], scale: float, chunks: _Chunks, correction: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [T, hk, K], v [T, hv, V], g, beta [T, hv], initial state [N, hv, K, V] -> o [T, hv, V], final state."""
    import torch

    q, k, v, g, beta, initial_state = leaves
    group = v.shape[1] // q.shape[1]
    Q, K, V = (_gather(x, chunks) for x in (q.repeat_interleave(group, 1), k.repeat_interleave(group, 1), v))
    G, b = _gather(g[..., None], chunks).cumsum(2), _gather(beta[..., None], chunks)
    total = G[:, :, -1:]
    rows = torch.arange(CHUNK, device=q.device)
    causal = rows[:, None] >= rows
    decay = torch.where(causal, G - G.mT, -torch.inf).exp()
    lower = (b * (K @ K.mT) * decay).tril(-1)
    right = torch.cat([b * V, b * G.exp() * K], -1)
    U, W = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True).split(
        [VALUE_SIZE, KEY_SIZE], -1
    )
    P = (Q @ K.mT) * decay
    read, write = G.exp() * Q, (total - G).exp() * K
    S, outputs, finished = initial_state[list(chunks.order)], [], []
    first = 0
    for count in chunks.active:
        finished.append(S[count:])
        S, c = S[:count], slice(first, first + count)
        N = U[c] - W[c] @ S if correction else V[c]
        outputs.append(scale * (read[c] @ S + P[c] @ N))
        S = total[c].exp() * S + write[c].mT @ N
        first += count
    return _scatter(outputs, chunks, v), torch.cat([S, *reversed(finished)])[_inverse(chunks.order)]


def _gather(x: torch.Tensor, chunks: _Chunks) -> torch.Tensor:
    """[T, heads, n] -> [chunks, heads, CHUNK, n], zero in unused rows."""
    return (x[chunks.tokens] * chunks.used[..., None, None]).transpose(1, 2)


def _scatter(outputs: Sequence[torch.Tensor], chunks: _Chunks, like: torch.Tensor) -> torch.Tensor:
    import torch

    if not outputs:
        return torch.zeros_like(like)
    o = torch.cat(list(outputs)).transpose(1, 2)[chunks.used]
    return torch.zeros_like(like).index_copy(0, chunks.tokens[chunks.used], o)


def _inverse(order: Sequence[int]) -> list[int]:
    places = [0] * len(order)
    for place, sequence in enumerate(order):
        places[sequence] = place
    return places


def _make_chunks(lengths: Sequence[int], device: torch.device) -> _Chunks:
    import torch

    counts = [-(-length // CHUNK) for length in lengths]
    starts = [0, *itertools.accumulate(lengths)]
    order = sorted(range(len(lengths)), key=lambda sequence: -counts[sequence])
    active = tuple(sum(count > n for count in counts) for n in range(max(counts, default=0)))
    pairs = [(sequence, n) for n, count in enumerate(active) for sequence in order[:count]]
    first = torch.tensor([starts[sequence] + n * CHUNK for sequence, n in pairs], device=device)
    left = torch.tensor([lengths[sequence] - n * CHUNK for sequence, n in pairs], device=device)
    rows = torch.arange(CHUNK, device=device)
    used = rows < left[:, None]
    return _Chunks((first[:, None] + rows) * used, used, active, tuple(order))
