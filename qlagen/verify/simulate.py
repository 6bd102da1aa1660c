"""Running an operator's generated kernels in the CPU emulator: buffers, tables and launches in order.

Kernel files are Python modules, see `qlagen.emit.load`. Tensors are torch CPU tensors, which this
module creates and so needs torch; TileLang is needed to lower the kernels.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from qlagen.verify.emulator import EmulatedKernel, Mode, build_emulated, lower_kernel
from qlagen.verify.segments import Sequences, join_segments

WORKERS = 3
"""CTAs of a persistent grid in the emulator: few, so that each walks several items."""
EAGER = Mode()
SEGMENT, WALK = "segment", "carried"
"""Kinds of kernels: those that make what the joining of segments needs, and those that need them joined."""
UNTOUCHED = -77
"""What an integer is that no kernel has written."""


@dataclass(frozen=True)
class Call:
    """One call of an operator. `tensors`: [tokens, heads, ...] by name; `numbers`: fp32 arguments by name.

    `initial_state` fp32 [sequences, value_heads, K, V], or with V before K when `value_first`; None: zero. `cuts` and
    `unused` as in `Sequences`; `skip_threshold` says when the map of a segment is left out; in two `turns` segments
    that have one come first.
    """

    tensors: Mapping[str, Any]
    numbers: Mapping[str, float]
    offsets: Sequence[int]
    value_heads: int
    state_shape: tuple[int, int]
    initial_state: Any = None
    value_first: bool = False
    cuts: tuple[tuple[int, ...], ...] = ()
    unused: int = 0
    skip_threshold: float = -10.0
    turns: int = 1


class EmulatedOperator:
    """An operator's kernels in launch order, built for the emulator in one data type."""

    def __init__(self, kernels: Sequence[ModuleType], data_type: str, out_dir: Path | None = None) -> None:
        self.modules = tuple(kernels)
        self.data_type = data_type
        self.kernels = tuple(_build(module, data_type, out_dir) for module in kernels)

    def __call__(self, call: Call, mode: Mode = EAGER, workers: int = WORKERS) -> dict[str, Any]:
        """Launches the kernels one after another; every buffer that they fill starts as NaN, and is NaN for later ones
        until they wait for the kernel before. Segments are made only where sequences are cut, and are joined before a
        kernel walks them.

        Returns all buffers by name, the final state as [sequences, value_heads, *state_shape] (transposed when
        `value_first`). Raises what `EmulatedKernel` raises.
        """
        torch = importlib.import_module("torch")
        sequences = Sequences(
            tuple(int(offset) for offset in call.offsets), self.modules[0].CHUNK, call.cuts, call.unused
        )
        tokens = next(iter(call.tensors.values())).shape[0]
        pool: dict[str, Any] = dict(call.tensors)
        tables = sequences.tables(tokens)
        for name, values in tables.items():
            pool[name] = torch.tensor(values, dtype=torch.int32)
        state = (sequences.count, call.value_heads, call.state_shape[0] * call.state_shape[1])
        for name in ("initial_state", "final_state"):
            pool[name] = torch.full(state, float("nan"), dtype=torch.float32)
        if call.initial_state is not None:
            pool["initial_state"].copy_(call.initial_state.reshape(state))
        sizes = {"tokens": tokens, "value_heads": call.value_heads, "sequences": sequences.count}
        sizes |= {"segments": sequences.segments, "segment_bounds": sequences.segments + 1, "joints": sequences.joints}
        sizes["chunk_count"] = sequences.slots(tokens)
        pool["given_offsets"] = torch.tensor([int(offset) for offset in call.offsets], dtype=torch.int32)
        sizes["offset_words"] = len(call.offsets)
        given = set(pool)
        for module, kernel in zip(self.modules, self.kernels, strict=True):
            if module.KIND == SEGMENT and not any(call.cuts):
                continue
            if module.KIND == WALK and "segment_joined" in pool:
                join_segments(pool["segment_state"], pool["segment_joined"], pool["segment_sequence"], call.state_shape)
            # The first kernel comes behind the one that makes the tables; later ones find these.
            handed_over = (pool.keys() - given or tables.keys()) & set(module.TENSORS)
            _allocate(torch, kernel, pool, sizes)
            arguments = {name: pool[name] for name in module.TENSORS}
            numbers = {**call.numbers, **_integers(call, workers)}
            arguments |= {name: numbers[name] for name, _ in module.SCALARS}
            kernel.run(arguments, mode, handed_over=handed_over)
        shape = call.state_shape[::-1] if call.value_first else call.state_shape
        pool["final_state"] = pool["final_state"].reshape(*state[:2], *shape)
        return pool


def _build(module: ModuleType, data_type: str, out_dir: Path | None) -> EmulatedKernel:
    lowered = lower_kernel(module.build(data_type), module.PASS_CONFIGS)
    return build_emulated(lowered, f"{module.NAME}_{data_type}", out_dir)


def _integers(call: Call, workers: int) -> dict[str, float]:
    key, value = call.state_shape
    strides = (1, key) if call.value_first else (value, 1)
    return {
        "state_key_stride": strides[0],
        "state_value_stride": strides[1],
        "has_initial_state": int(call.initial_state is not None),
        "has_final_state": 1,
        "workers": workers,
        "has_spare_chunks": 1,
        "sequences": len(call.offsets) - 1,
        "wide_offsets": 0,
        "skip_threshold": call.skip_threshold,
        "turns": call.turns,
    }


def _allocate(torch: Any, kernel: EmulatedKernel, pool: dict[str, Any], sizes: Mapping[str, int]) -> None:
    """Buffers that no earlier kernel and no argument gave: outputs, full of NaN, or of an odd number."""
    for parameter in kernel.lowered.parameters:
        if parameter.shape is not None and parameter.name not in pool:
            shape = [size if isinstance(size, int) else sizes[size] for size in parameter.shape]
            dtype = getattr(torch, parameter.dtype)
            pool[parameter.name] = torch.full(
                shape, float("nan") if dtype.is_floating_point else UNTOUCHED, dtype=dtype
            )
