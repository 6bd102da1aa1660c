"""The specs, edited copies of them, and random values for their chunk inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.derivation import Derivation
from qlagen.algebra.derive import derive
from qlagen.algebra.fields import Array
from qlagen.algebra.sequence import Sequence
from qlagen.spec import parse_spec
from qlagen.spec.model import OpSpec

SPECS = Path(__file__).resolve().parents[2] / "specs"
NAMES = ("gated_delta_rule", "delta_rule", "simple_gla")
FAMILY = ("gla", "kda", "comba", "gdn2", "rwkv7", "gated_delta_product", "mamba2")
"""Operators with gates per channel, gates before the decay, several steps a token or a step size."""


@cache
def text(name: str) -> str:
    return (SPECS / f"{name}.toml").read_text("utf-8")


@cache
def spec(name: str, *edits: tuple[str, str]) -> OpSpec:
    """A spec with pieces of its text exchanged; every piece must occur."""
    changed = text(name)
    for old, new in edits:
        assert old in changed, f"{old!r} is not in {name}.toml"
        changed = changed.replace(old, new)
    return parse_spec(changed, f"{name}.toml")


@cache
def derivation(name: str, *edits: tuple[str, str]) -> Derivation:
    return derive(spec(name, *edits))


def chunk_values(op: OpSpec, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Float values of every chunk input within its declared range, normalised where a norm is declared."""
    generator = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    declared = {i.chunk_symbol: i for i in op.inputs}
    for name, node in chunk_inputs(op).items():
        drawn = generator.normal(size=[sizes[d] for d in node.shape])
        tensor = declared.get(name)
        if tensor is not None and tensor.role == "log_gate":
            drawn = np.cumsum(-np.abs(drawn) / 4, axis=0)
        elif tensor is not None and tensor.norm is not None:
            drawn *= tensor.norm / np.linalg.norm(drawn, axis=1, keepdims=True)
        elif tensor is not None and tensor.range != (None, None):
            low, high = tensor.range
            drawn = generator.uniform(low or 0.0, 1.0 if high is None else high, drawn.shape)
        values[name] = drawn
    return values


def sequence_values(op: OpSpec, length: int, sizes: Mapping[str, int], chunk: int, seed: int = 0) -> Sequence:
    """A random sequence of one head within the spec's ranges, with an initial state."""
    generator = np.random.default_rng(seed)
    values = chunk_values(op, op.sizes(length, {**dict(op.dims), **sizes}), seed)
    tensors: dict[str, Array] = {}
    for tensor in op.inputs:
        value = values[tensor.chunk_symbol]
        tensors[tensor.name] = np.diff(value, axis=0, prepend=0.0) if tensor.role == "log_gate" else value
    return Sequence(tensors, generator.normal(size=values[op.state].shape), chunk)
