"""Run an operator on the activations of a real model's layer, and inside that layer.

The layer is the gated delta net of Qwen3-Next as the transformers package has it, with random weights from its own
initialisers: its own gates (A_log, dt_bias), l2-normalised q and k, and packed sequences of different lengths. Two
things are compared:

- the operator on the captured q, k, v, g and beta, with the float64 token recurrence, within error budgets;
- the layer's output with the operator in place of the package's own torch chunk function, with the layer's output
  when the package runs every sequence by itself.

From a checkout: python -m tools.real_input --operator qla_ops:chunk_gated_delta_rule [--heads 16:32]
    [--lengths 3000,1,0,63,5128] [--dtype bfloat16] [--device cuda]

The transformers package keeps packed sequences apart only with another package's kernels: its own torch functions
refuse ``cu_seqlens``. So the packed run also splits the causal convolution by sequence, with the package's function.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as modeling
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

from qlagen.algebra.build import build_form
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec
from qlagen.verify.budget import FACTOR
from qlagen.verify.cases import Case, Inputs
from qlagen.verify.emulate import Rounding, emulate
from qlagen.verify.library import verify_problem
from qlagen.verify.problem import Problem, problem_of
from qlagen.verify.report import Row, as_table, exit_status
from qlagen.verify.rounding import StorageType

CHUNK_FUNCTION = "torch_chunk_gated_delta_rule"
CONVOLUTION = "causal_conv1d_fn"
SPEC = Path(__file__).parents[1] / "specs" / "gated_delta_rule.toml"
LAYER_FLOOR = 1e-4
"""Smallest budget of a layer's output: the package computes in fp32, and its norm enlarges small rows."""

Tensors = tuple[torch.Tensor, torch.Tensor | None]
Operator = Callable[..., Tensors]


@dataclass(frozen=True)
class Layer:
    """One layer and packed input for it: `hidden` is [1, sum of lengths, width]."""

    module: torch.nn.Module
    hidden: torch.Tensor
    lengths: tuple[int, ...]

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.lengths)]


@dataclass(frozen=True)
class Captured:
    """What the layer gives its chunk function, q and k l2-normalised, all in the data type."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    cu_seqlens: torch.Tensor


def make_layer(
    key_heads: int,
    value_heads: int,
    lengths: Sequence[int],
    *,
    head_size: int = 128,
    width: int = 256,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Layer:
    """A layer with weights from the package's initialisers, and normalised random hidden states."""
    torch.manual_seed(seed)
    config = Qwen3NextConfig(
        vocab_size=8,
        hidden_size=width,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=head_size,
        linear_value_head_dim=head_size,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        intermediate_size=8,
    )
    block = modeling.Qwen3NextModel(config).eval().layers[0]
    with torch.no_grad():
        hidden = block.input_layernorm(torch.randn(1, sum(lengths), width))
    module = block.linear_attn.to(device=device, dtype=dtype)
    return Layer(module, hidden.to(device=device, dtype=dtype), tuple(lengths))


@torch.no_grad()
def run_apart(layer: Layer) -> torch.Tensor:
    """The layer's output by the package's own torch functions, one sequence at a time."""
    originals = {name: inspect.unwrap(getattr(modeling, name)) for name in (CHUNK_FUNCTION, CONVOLUTION)}
    with _replaced(**originals):
        spans = itertools.pairwise(layer.offsets)
        return torch.cat([layer.module(layer.hidden[:, a:b]) for a, b in spans if b > a], dim=1)


@torch.no_grad()
def run_packed(layer: Layer, chunk_function: Callable[..., Tensors]) -> torch.Tensor:
    """The layer's output on all sequences at once, with another chunk function."""
    offsets = torch.tensor(layer.offsets, dtype=torch.int32, device=layer.hidden.device)
    lengths = torch.tensor(layer.lengths, device=layer.hidden.device)
    index = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)[None].int()
    convolve = inspect.unwrap(getattr(modeling, CONVOLUTION))

    def by_sequence(hidden: torch.Tensor, *weights: Any, activation: str | None = None, **_: Any) -> torch.Tensor:
        spans = itertools.pairwise(layer.offsets)
        parts = [convolve(hidden[..., a:b], *weights, activation=activation) for a, b in spans if b > a]
        return torch.cat(parts, dim=-1)

    with _replaced(**{CHUNK_FUNCTION: chunk_function, CONVOLUTION: by_sequence}):
        out: torch.Tensor = layer.module(layer.hidden, cu_seq_lens_q=offsets, seq_idx=index)
    return out


def in_place_of_chunk_function(operator: Operator, dtype: torch.dtype | None = None) -> Callable[..., Tensors]:
    """The operator behind the package's signature. It gets q, k and v in `dtype` (theirs by default)."""

    def chunk_function(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        **_: Any,
    ) -> Tensors:
        data = value.dtype if dtype is None else dtype
        if use_qk_l2norm_in_kernel:
            query, key = modeling.l2norm(query.float()), modeling.l2norm(key.float())
        query, key, data_value = (tensor.to(data) for tensor in (query, key, value))
        out, state = operator(
            query,
            key,
            data_value,
            g=g,
            beta=beta,
            initial_state=initial_state,
            output_final_state=output_final_state,
            cu_seqlens=cu_seqlens,
        )
        return out.to(value.dtype), state

    return chunk_function


def capture(layer: Layer, dtype: torch.dtype | None = None) -> Captured:
    """The operands that an operator in place of the chunk function gets."""
    taken: list[Captured] = []

    def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> Tensors:
        taken.append(Captured(q, k, v, named["g"], named["beta"], named["cu_seqlens"]))
        return torch.zeros_like(v), None

    run_packed(layer, in_place_of_chunk_function(operator, dtype))
    return taken[0]


def problem_from(layer: Layer, captured: Captured, spec: OpSpec) -> Problem:
    """Oracle and budgets for the captured operands. beta comes in the layer's type, g in fp32."""
    names: dict[torch.dtype, StorageType] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }
    keys, values = captured.k.shape[2], captured.v.shape[2]
    case = Case(
        f"captured, heads {keys}:{values}, {sum(layer.lengths)} tokens, {names[captured.v.dtype]}",
        layer.lengths,
        packed=True,
        key_heads=keys,
        value_heads=values,
        dtype=names[captured.v.dtype],
        gate="model",
        initial_state=False,
    )
    arrays = {name: getattr(captured, name).double().cpu().numpy() for name in ("q", "k", "v", "g", "beta")}
    arrays["scale"] = np.array(captured.k.shape[3] ** -0.5)
    inputs = Inputs(arrays, None, np.array(layer.offsets, dtype=np.int64))
    return problem_of(spec, build_form(spec), case, inputs)


def layer_rows(layer: Layer, problem: Problem, operator: Operator, implementation: str) -> list[Row]:
    """One row: the layer's output with the operator in place, against the package's own.

    The budget is that of an honest operator with the same data type: the emulated one, run in the same place.
    """
    own = run_apart(layer).double()
    dtype = getattr(torch, problem.case.dtype)

    def error(candidate: Operator) -> float:
        out = run_packed(layer, in_place_of_chunk_function(candidate, dtype)).double()
        distance = float((out - own).norm() / own.norm())
        return distance if np.isfinite(distance) else float("inf")

    def emulated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> Tensors:
        rounding = Rounding(problem.case.dtype, 1)
        o, _state = emulate(problem.spec, build_form(problem.spec), problem.inputs, rounding)
        return torch.from_numpy(o).to(v), None

    got, budget = error(operator), max(FACTOR * error(emulated), LAYER_FLOOR)
    return [Row(problem.spec.name, problem.case.name, implementation, "layer", got, budget, got <= budget)]


@contextmanager
def _replaced(**functions: Any) -> Iterator[None]:
    """Module-level functions of the package, exchanged for a while."""
    before = {name: getattr(modeling, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(modeling, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(modeling, name, function)


def verify_real_input(operator: Operator, layer: Layer, implementation: str, dtype: torch.dtype) -> list[Row]:
    """Rows for o, the final state and the layer's output."""
    problem = problem_from(layer, capture(layer, dtype), load_spec(SPEC))
    rows = verify_problem(operator, problem, implementation, str(layer.hidden.device))
    return rows + layer_rows(layer, problem, operator, implementation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; prints the table and returns 1 when something exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", default="qla_ops:chunk_gated_delta_rule", metavar="MODULE:FUNCTION")
    parser.add_argument("--heads", default="16:32", metavar="HK:HV")
    parser.add_argument("--lengths", default="3000,1,0,63,5128", metavar="L,L,...")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--seed", type=int, default=3, help="of the weights; the default has a head that decays slowly")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    module, _, function = given.operator.partition(":")
    operator = getattr(importlib.import_module(module), function)
    dtype = getattr(torch, given.dtype)
    key_heads, value_heads = (int(part) for part in given.heads.split(":"))
    lengths = [int(part) for part in given.lengths.split(",")]
    layer = make_layer(
        key_heads, value_heads, lengths, width=given.width, dtype=dtype, device=given.device, seed=given.seed
    )
    rows = verify_real_input(operator, layer, given.operator, dtype)
    print(as_table(rows))
    return exit_status(rows)


if __name__ == "__main__":
    sys.exit(main())
