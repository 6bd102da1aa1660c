"""Small calls of an operator, for tests of what surrounds the arithmetic."""

from __future__ import annotations

from typing import Any

import torch

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 128, 128


def inputs(batch: int = 1, length: int = 70, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> dict[str, Any]:
    """Arguments of the gated operator: unit keys, gates <= 0, factors in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(batch, length, *shape, generator=generator)

    return {
        "q": torch.nn.functional.normalize(normal(KEY_HEADS, KEY_DIM), dim=-1).to(dtype),
        "k": torch.nn.functional.normalize(normal(KEY_HEADS, KEY_DIM), dim=-1).to(dtype),
        "v": normal(VALUE_HEADS, VALUE_DIM).to(dtype),
        "g": -normal(VALUE_HEADS).abs() / 8,
        "beta": normal(VALUE_HEADS).sigmoid(),
    }


def states(count: int = 1, value_first: bool = False, seed: int = 1) -> torch.Tensor:
    """fp32 states, unlike their transposes."""
    shape = (VALUE_DIM, KEY_DIM) if value_first else (KEY_DIM, VALUE_DIM)
    return torch.randn(count, VALUE_HEADS, *shape, generator=torch.Generator().manual_seed(seed))
