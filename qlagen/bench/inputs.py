"""The tensors of a case: seeded, so that every implementation and every run sees the same numbers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from qlagen.bench.cases import KEY_SIZE, VALUE_SIZE, Case

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Inputs:
    """q, k [1, T, Hk, K] and v, d_output [1, T, Hv, V] in the data type, q and k with rows of length one;
    g (log gate), beta [1, T, Hv], initial_state and d_final_state [N, Hv, K, V] in float32; cu_seqlens int32 [N+1].

    The gradients d_output and d_final_state are None in a forward case.
    """

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    initial_state: torch.Tensor
    cu_seqlens: torch.Tensor
    scale: float
    d_output: torch.Tensor | None = None
    d_final_state: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The floating-point tensors, by field name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in named.items() if hasattr(x, "is_floating_point") and name != "cu_seqlens"}

    @property
    def bytes(self) -> int:
        return sum(value.numel() * value.element_size() for value in self.tensors().values())

    def copy(self) -> Inputs:
        """The same numbers at other addresses; cu_seqlens stays the same, as it does between a model's layers."""
        copies: dict[str, Any] = {name: value.clone() for name, value in self.tensors().items()}
        return replace(self, **copies)


def make_inputs(case: Case, device: str = "cuda", dtype: str = "bfloat16") -> Inputs:
    """The tensors of a case on a device; `dtype` is that of q, k, v and d_output."""
    import torch
    import torch.nn.functional as F

    generator = torch.Generator(device).manual_seed(zlib.crc32(case.name.encode()))
    data = getattr(torch, dtype)
    tokens, sequences = case.tokens, len(case.lengths)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    def unit(heads: int) -> torch.Tensor:
        return F.normalize(normal(1, tokens, heads, KEY_SIZE), dim=-1).to(data)

    state = (sequences, case.value_heads, KEY_SIZE, VALUE_SIZE)
    inputs = Inputs(
        case,
        q=unit(case.key_heads),
        k=unit(case.key_heads),
        v=normal(1, tokens, case.value_heads, VALUE_SIZE).to(data),
        g=_gates(case, device, generator),
        beta=normal(1, tokens, case.value_heads).sigmoid(),
        initial_state=normal(*state),
        cu_seqlens=torch.tensor([0, *case.lengths], device=device).cumsum(0).to(torch.int32),
        scale=KEY_SIZE**-0.5,
    )
    if case.direction == "forward":
        return inputs
    d_output = normal(1, tokens, case.value_heads, VALUE_SIZE).to(data)
    # Of the size that a later layer's gradient would have beside d_output, so that neither hides errors of the other.
    return replace(inputs, d_output=d_output, d_final_state=normal(*state) / 8)


def _gates(case: Case, device: str, generator: torch.Generator) -> torch.Tensor:
    """g [1, T, Hv], the natural log of each token's decay.

    `quarter ungated`: a quarter of the heads never decays, the others slowly. `model init`: what a Qwen3-Next layer
    computes at initialisation, g = -A softplus(a + 1) with A uniform in (0.01, 16) per head: a chunk forgets the past.
    Zero for an operator without a gate.
    """
    import torch
    import torch.nn.functional as F

    heads = case.value_heads
    if not case.traits.gate:
        return torch.zeros(1, case.tokens, heads, device=device)
    noise = torch.randn(1, case.tokens, heads, device=device, generator=generator)
    if case.gates == "model init":
        rate = torch.rand(heads, device=device, generator=generator) * 15.99 + 0.01
        return -rate * F.softplus(noise + 1)
    g = F.logsigmoid(noise) / 16
    order = torch.randperm(heads, device=device, generator=generator)
    g[:, :, order[: heads // 4]] = 0
    return g
