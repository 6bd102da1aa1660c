"""Inputs that a kernel must survive, made from what a spec says about its inputs.

A `Case` is a shape and a kind of values for each sort of input: gates (``log_gate`` inputs), factors (numbers, or
vectors of them, with a declared range), keys (vectors with a declared norm bound). Cases that say nothing about an
operator, such as a gate for one without a gate, are left out for it. The values are random but depend on the case's
name and the seed only.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from qlagen.spec.model import Input, OpSpec
from qlagen.verify.rounding import StorageType, round_to

Array = npt.NDArray[np.float64]
Gate = Literal["soft", "zero", "strong", "reset", "model", "mixed"]
Factor = Literal["random", "low", "one", "high"]
Keys = Literal["random", "identical", "period", "similar", "zero", "short"]

PERIOD = 16
"""Period of the keys of kind ``period``."""
COSINE = 0.9
"""Cosine, on average, between two keys of kind ``similar``."""


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    `lengths` are the tokens of each sequence. With `packed` the sequences follow one another in one batch row and the
    call gets ``cu_seqlens``; without it they are the batch rows and must be equally long. `padding` rows follow the
    last packed sequence: their inputs are NaN, their outputs must be zero.
    """

    name: str
    lengths: tuple[int, ...]
    packed: bool = False
    padding: int = 0
    key_heads: int = 2
    value_heads: int = 4
    dtype: StorageType = "bfloat16"
    """Of the ``data`` inputs and of the output."""
    number_dtype: StorageType = "float32"
    """Of the inputs that are computed in fp32 (gates, factors) and of the initial state."""
    gate: Gate = "soft"
    factor: Factor = "random"
    keys: Keys = "random"
    initial_state: bool = True
    state_v_first: bool = False
    """The state is passed and returned as [N, Hv, V, K]."""
    index_dtype: Literal["int32", "int64"] = "int32"
    spoiled: int | None = None
    """A sequence all of whose inputs are NaN. What it gives is not judged, but no other sequence may feel it."""
    scale: float | None = None
    """Value of the arguments without heads; None for their default."""
    segments: int | None = None
    """Segments that each sequence is cut into, where an implementation can and its chunks allow; None: as it likes."""

    @property
    def batch(self) -> int:
        return 1 if self.packed else len(self.lengths)

    @property
    def tokens(self) -> int:
        """Rows of one batch row, padding included."""
        return sum(self.lengths) + self.padding if self.packed else max(self.lengths)


@dataclass(frozen=True)
class Inputs:
    """The values of one call, in float64 but already rounded to the types they are passed in."""

    arrays: dict[str, Array]
    """Argument name to [B, T, H, size], [B, T, H] or a number ([])."""
    initial_state: Array | None
    """[N, Hv, K, V]"""
    cu_seqlens: npt.NDArray[np.int64] | None
    """[N + 1]"""


def make_inputs(spec: OpSpec, case: Case, seed: int = 0) -> Inputs:
    """The inputs of `case` for the operator of `spec`."""
    if not case.packed and len(set(case.lengths)) > 1:
        raise ValueError(f"case {case.name!r}: sequences of different lengths must be packed")
    rng = np.random.default_rng([zlib.crc32(case.name.encode()), seed])
    sizes = dict(spec.dims)
    arrays: dict[str, Array] = {}
    for item in spec.inputs:
        if item.heads == "none":
            arrays[item.name] = np.array(default_value(spec, item) if case.scale is None else case.scale)
            continue
        heads = case.key_heads if item.heads == "key" else case.value_heads
        shape = (case.batch, case.tokens, heads, *(sizes[dim] for dim in item.dims))
        values = _values(item, case, shape, rng)
        _spoil(values, case)
        arrays[item.name] = round_to(values, case.dtype if item.dtype == "data" else case.number_dtype)
    state_shape = (len(case.lengths), case.value_heads, sizes["K"], sizes["V"])
    state = round_to(rng.standard_normal(state_shape), case.number_dtype) if case.initial_state else None
    if state is not None and case.spoiled is not None:
        state[case.spoiled] = np.nan
    offsets = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64) if case.packed else None
    return Inputs(arrays, state, offsets)


def default_value(spec: OpSpec, item: Input) -> float:
    """The default of an argument without heads: a number, or a power of a dimension such as ``K^-1/2``."""
    text = (item.default or "1").replace(" ", "")
    base, power, exponent = text.partition("^")
    if not power:
        return float(text)
    top, _, bottom = exponent.strip("()").partition("/")
    return float(dict(spec.dims)[base] ** (float(top) / float(bottom or 1)))


def _spoil(values: Array, case: Case) -> None:
    """NaN in the rows [B, T, ...] that belong to no sequence, and in those of the spoiled sequence."""
    if case.packed:
        values[:, sum(case.lengths) :] = np.nan
    if case.spoiled is not None:
        row, first = (0, sum(case.lengths[: case.spoiled])) if case.packed else (case.spoiled, 0)
        values[row, first : first + case.lengths[case.spoiled]] = np.nan


def _values(item: Input, case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if item.role == "log_gate":
        return np.maximum(_gate(case.gate, shape, rng), -np.inf if item.range[0] is None else item.range[0])
    if item.norm is not None:
        return item.norm * _keys(case.keys, shape, rng)
    if _is_factor(item) or item.width == "1":
        return _factor(item, case.factor, shape, rng)
    values = rng.standard_normal(shape)
    if item.heads == "key":
        return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))
    magnitude = (1 + np.arange(shape[2])) / shape[2]
    return values * magnitude.reshape(-1, *[1] * (len(shape) - 3))


def _gate(kind: Gate, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Natural logarithms of the decay, all <= 0."""
    soft = -np.logaddexp(0, -rng.standard_normal(shape)) / 16
    if kind == "soft":
        return soft
    if kind == "zero":
        return np.zeros(shape)
    if kind == "strong":
        return rng.uniform(-70, -50, shape)
    if kind == "model":
        steepness = np.linspace(0, 16, shape[2]).reshape(1, 1, -1, *[1] * (len(shape) - 3))
        return np.asarray(-steepness * np.logaddexp(0, rng.standard_normal(shape) + 1))
    if kind == "reset":
        soft[rng.random(shape) < 0.05] = -np.inf
        for edge in (0, 62, 63, 64):
            soft[:, edge : edge + 1, edge % shape[2]] = -np.inf
        return soft
    kinds: tuple[Gate, ...] = ("zero", "strong", "soft", "reset")
    for head in range(shape[2]):
        soft[:, :, head : head + 1] = _gate(kinds[head % len(kinds)], (*shape[:2], 1, *shape[3:]), rng)
    return soft


def _is_factor(item: Input) -> bool:
    """A number, or a vector of numbers, with bounds on both sides."""
    return item.role == "plain" and item.heads != "none" and item.norm is None and None not in item.range


def _factor(item: Input, kind: Factor, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    low, high = item.range
    if low is None or high is None:
        values = rng.standard_normal(shape)
        if low is not None:
            return np.asarray(low + np.abs(values))
        return values if high is None else np.asarray(high - np.abs(values))
    if kind == "random":
        return rng.uniform(low, high, shape)
    return np.full(shape, low if kind == "low" else high if kind == "high" else min(max(1.0, low), high))


def _keys(kind: Keys, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Vectors of norm at most 1."""
    values = rng.standard_normal(shape)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    if kind == "identical":
        values[:] = values[:1, :1] if shape[1] else 0
    elif kind == "period":
        values[:] = values[:1, np.arange(shape[1]) % PERIOD]
    elif kind == "similar" and shape[1]:
        values = np.sqrt(COSINE) * values[:1, :1] + np.sqrt(1 - COSINE) * values
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
    elif kind == "zero":
        values[rng.random(shape[:-1]) < 0.5] = 0
    elif kind == "short":
        values *= rng.random(shape[:-1])[..., None]
    return values


def applies(spec: OpSpec, case: Case) -> bool:
    """Whether the kinds of values that the case asks for exist among the spec's inputs."""
    gates = any(item.role == "log_gate" for item in spec.inputs)
    factors = any(map(_is_factor, spec.inputs))
    keys = any(item.norm is not None for item in spec.inputs)
    numbers = any(item.dtype == "float32" and item.heads != "none" for item in spec.inputs)
    return (
        (gates or case.gate == "soft")
        and (factors or case.factor == "random")
        and (keys or case.keys == "random")
        and (numbers or case.number_dtype == "float32")
        and (case.scale is None or any(item.heads == "none" for item in spec.inputs))
    )


def cases_for(spec: OpSpec, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases that apply to an operator, in order."""
    return tuple(case for case in cases if applies(spec, case))


LENGTHS = (1, 63, 64, 65, 200)
EMPTY_AMONG = (57, 0, 7, 65, 130)
"""Sequences of which one is empty, and which end before, on and after the end of a chunk."""

SMALL: tuple[Case, ...] = (
    *(Case(f"T={length}", (length,), key_heads=1, value_heads=2) for length in LENGTHS),
    Case("packed, one empty", EMPTY_AMONG, packed=True, key_heads=1, value_heads=2),
)
"""What every implementation must pass, also those that are slow to run."""

QUICK: tuple[Case, ...] = (
    *SMALL,
    Case("no tokens", (0, 0)),
    Case("all empty", (0, 0, 0), packed=True, padding=3),
    Case("batch of 3", (77, 77, 77), initial_state=False),
    Case("padded tail", (70, 0, 33, 1), packed=True, padding=19, index_dtype="int64"),
    Case("one sequence NaN", (65, 70, 0, 64), packed=True, padding=9, spoiled=1),
    Case("one batch row NaN", (70, 70, 70), spoiled=1),
    Case("heads 1:1", (130,), key_heads=1, value_heads=1),
    Case("heads 3:12", (66,), key_heads=3, value_heads=12),
    Case("fp16", (130,), dtype="float16"),
    Case("fp16 numbers", (130,), dtype="float16", number_dtype="float16", initial_state=False),
    Case("bf16 numbers", (130,), number_dtype="bfloat16"),
    Case("state V first", (65, 130), packed=True, state_v_first=True),
    Case("scale 0", (65,), scale=0.0),
    Case("scale 2", (65,), scale=2.0),
    *(Case(f"gate {kind}", (200,), gate=kind) for kind in ("zero", "strong", "reset", "model", "mixed")),
    *(Case(f"factor {kind}", (130,), factor=kind) for kind in ("low", "one", "high")),
    *(Case(f"keys {kind}", (130,), keys=kind) for kind in ("period", "similar", "zero", "short")),
    Case("keys identical, factor one, gate zero", (200,), keys="identical", factor="one", gate="zero"),
    Case("keys identical", (200,), keys="identical"),
    Case("keys period, factor one, gate zero", (200,), keys="period", factor="one", gate="zero"),
    Case("keys similar, factor high, gate zero", (130,), keys="similar", factor="high", gate="zero"),
)
"""Every kind of value, short enough for a CPU: seconds for each operator."""

RAGGED = (1, 0, 511, 64, 65, 1000, 63, 344)
GPU: tuple[Case, ...] = (
    *QUICK,
    *(
        replace(case, name=f"{case.name} {keys}:{values}", key_heads=keys, value_heads=values)
        for keys, values in ((2, 8), (16, 32), (16, 64))
        for case in (
            Case("equal", (1024, 1024)),
            Case("one long", (2048,), gate="model"),
            Case("ragged", RAGGED, packed=True, padding=5),
            Case("ragged fp16", RAGGED, packed=True, dtype="float16"),
        )
    ),
    Case("many short", (16,) * 160, packed=True, key_heads=1, value_heads=2),
    *(
        replace(case, name=f"{case.name}, cut into {case.segments}")
        for case in (
            Case("equal", (1024, 1024), segments=2),
            Case("equal, gate zero", (1000, 1000, 1000), gate="zero", segments=5, initial_state=False),
            Case("ragged", RAGGED, packed=True, padding=5, segments=3),
            Case("ragged, gate mixed", RAGGED, packed=True, gate="mixed", segments=16, state_v_first=True),
            Case("ragged fp16", RAGGED, packed=True, dtype="float16", gate="zero", segments=4),
            Case("one long 2:8", (2048,), gate="model", key_heads=2, value_heads=8, segments=32),
            Case("one long, gate zero 2:8", (2048,), gate="zero", key_heads=2, value_heads=8, segments=8),
            Case("one long, gate zero 1:2", (2048,), gate="zero", key_heads=1, value_heads=2, segments=24),
            Case("two long 2:8", (1400, 1500), packed=True, gate="mixed", key_heads=2, value_heads=8, segments=20),
            Case("one sequence NaN", (650, 700, 0, 640), packed=True, padding=9, spoiled=1, segments=4),
            Case("keys similar, factor high", (640,), keys="similar", factor="high", gate="zero", segments=3),
        )
    ),
)
"""For kernels on a GPU: the small cases too, and head counts and lengths of real models."""

PORTABLE: tuple[Case, ...] = (
    *QUICK,
    Case("fp32", (130,), dtype="float32"),
    Case("fp32, gate mixed", (200,), dtype="float32", gate="mixed"),
    Case("fp32, keys similar", (130,), dtype="float32", keys="similar", factor="one"),
)
"""For the portable implementation, which takes fp32 data as well."""

SETS: dict[str, tuple[Case, ...]] = {"small": SMALL, "quick": QUICK, "portable": PORTABLE, "gpu": GPU}
