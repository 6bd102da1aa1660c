"""Derivations of forms that no search would choose, and their values: small sizes, one chunk or a few."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qlagen.algebra.build import build_form
from qlagen.algebra.derivation import Cost, Derivation, Form, Proof
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Float64
from qlagen.program.plan import build_plan
from qlagen.spec.model import OpSpec
from tests.algebra.operators import spec as load
from tests.program.interpret import run_plan

Array = npt.NDArray[np.float64]
CHUNK, KEY, VALUE = 8, 5, 3
_COST = Cost(0, 0, 0, 0, 0)


def small_spec(name: str, *edits: tuple[str, str]) -> OpSpec:
    sizes = dict(load(name).dims)
    return load(name, (f"K = {sizes['K']}", f"K = {KEY}"), (f"V = {sizes['V']}", f"V = {VALUE}"), *edits)


def as_derivation(spec: OpSpec, form: Form, chunk: int = CHUNK) -> Derivation:
    """The form as if a search had chosen it. Nothing is proven."""
    return Derivation(spec, form, form, (), _COST, _COST, Proof(chunk, KEY, VALUE, 0, 0, 1.0))


def written(spec: OpSpec) -> Derivation:
    """The spec's stages as they are written."""
    return as_derivation(spec, build_form(spec))


def draw_inputs(spec: OpSpec, tokens: int, seed: int = 0) -> tuple[dict[str, Array], Array]:
    """[T, width], [T] or number for each input, and a state [K, V]."""
    random = np.random.default_rng(seed)
    sizes = dict(spec.dims)
    arrays: dict[str, Array] = {}
    for item in spec.inputs:
        drawn = random.standard_normal(() if item.heads == "none" else (tokens, *(sizes[d] for d in item.dims)))
        if item.norm is not None:
            drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        arrays[item.name] = -np.abs(drawn) if item.role == "log_gate" else np.asarray(drawn)
    return arrays, random.standard_normal((sizes["K"], sizes["V"]))


def evaluate_form(spec: OpSpec, form: Form, arrays: dict[str, Array], state: Array) -> tuple[Array, Array]:
    """The form's own value on one whole chunk."""
    env = {spec.state: state}
    for item in spec.inputs:
        value = np.cumsum(arrays[item.name], axis=0) if item.role == "log_gate" else arrays[item.name]
        env[item.chunk_symbol] = value.reshape(1, 1) if value.ndim == 0 else value.reshape(len(value), -1)
    rows = len(env[spec.inputs[0].chunk_symbol])
    output, after = evaluate((form.output, form.state), env, rows, Float64())
    return np.asarray(output), np.asarray(after)


def check_one_chunk(derivation: Derivation, seed: int = 0) -> None:
    """The plan's programs compute what the form says."""
    spec = derivation.spec
    arrays, state = draw_inputs(spec, CHUNK, seed)
    got = run_plan(build_plan(derivation), arrays, state)
    for value, wanted in zip(got, evaluate_form(spec, derivation.chosen, arrays, state), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-10 * max(1.0, float(np.abs(wanted).max())))
