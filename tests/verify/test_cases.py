"""The inputs are what their names say, within the ranges that the specs declare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qlagen.spec.load import load_spec, parse_spec
from qlagen.spec.model import OpSpec
from qlagen.verify.cases import GPU, LENGTHS, QUICK, SETS, SMALL, Case, applies, cases_for, default_value, make_inputs
from qlagen.verify.rounding import StorageType, round_to
from tests.algebra.operators import FAMILY

SPECS = Path(__file__).parents[2] / "specs"
GATED = load_spec(SPECS / "gated_delta_rule.toml")
UNGATED = load_spec(SPECS / "delta_rule.toml")
NO_KEYS = load_spec(SPECS / "simple_gla.toml")
EVERY = (GATED, UNGATED, NO_KEYS, *(load_spec(SPECS / f"{name}.toml") for name in FAMILY))


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_rounding_agrees_with_another_implementation(storage: StorageType) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 5, 4000), [0, -0.0, np.inf, -np.inf]])
    single = values.astype(np.float32)
    other = torch.from_numpy(single).to(getattr(torch, storage)).double().numpy()
    np.testing.assert_array_equal(round_to(single, storage), other)
    halfway = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20], dtype=np.float32)
    if storage == "bfloat16":
        np.testing.assert_array_equal(round_to(halfway, storage), [1, 1 + 4 * 2.0**-8, 1 + 2.0**-7])
    assert np.isnan(round_to(np.array([np.nan]), storage)[0])
    assert round_to(np.array(0.3), storage).shape == ()


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_every_input_keeps_its_declared_range_and_type(spec: OpSpec) -> None:
    for case in cases_for(spec, QUICK):
        inputs = make_inputs(spec, case)
        end = sum(case.lengths)
        for item in spec.inputs:
            array = inputs.arrays[item.name]
            if item.heads == "none":
                continue
            used = array[:, :end] if case.packed else array
            if case.spoiled is not None:
                used = used[~np.isnan(used).reshape((*used.shape[:2], -1)).any(axis=-1)][None]
                assert used.shape[1] == end - case.lengths[case.spoiled]
            low, high = item.range
            assert low is None or np.all(used >= low), (case.name, item.name)
            assert high is None or np.all(used <= high), (case.name, item.name)
            assert not np.isnan(used).any()
            assert np.isnan(array[:, end:]).all() or not case.packed
            stored = case.dtype if item.dtype == "data" else case.number_dtype
            np.testing.assert_array_equal(round_to(array, stored), array)
            if item.norm is not None:
                assert np.all(np.linalg.norm(used, axis=-1) <= item.norm * 1.005)
        state = inputs.initial_state
        assert (state is None) is not case.initial_state
        sizes = dict(spec.dims)
        assert state is None or state.shape == (len(case.lengths), case.value_heads, sizes["K"], sizes["V"])


def test_values_are_what_the_kind_says() -> None:
    case = Case("x", (130,))
    made = {kind: make_inputs(GATED, replace(case, gate=kind)).arrays["g"][0] for kind in ("zero", "strong", "reset")}
    assert np.all(made["zero"] == 0)
    assert np.all((made["strong"] <= -50) & (made["strong"] >= -70))
    assert np.isneginf(made["reset"][[0, 62, 63, 64], [0, 2, 3, 0]]).all()
    assert np.isfinite(made["reset"]).any()
    model = make_inputs(GATED, replace(case, gate="model")).arrays["g"][0]
    assert np.all(model[:, 0] == 0)
    assert model[:, 3].mean() < -5
    mixed = make_inputs(GATED, replace(case, gate="mixed")).arrays["g"][0]
    assert np.all(mixed[:, 0] == 0)
    assert np.all(mixed[:, 1] < -49)
    assert np.isneginf(mixed[:, 3]).any()
    for kind, value in {"low": 0, "one": 1, "high": 2}.items():
        assert np.all(make_inputs(GATED, replace(case, factor=kind)).arrays["beta"] == value)
    keys = {
        kind: make_inputs(GATED, replace(case, keys=kind)).arrays["k"][0, :, 0]
        for kind in ("identical", "period", "similar", "zero", "short")
    }
    assert np.all(keys["identical"] == keys["identical"][0])
    assert np.array_equal(keys["period"][16:], keys["period"][:-16])
    assert not np.array_equal(keys["period"][0], keys["period"][1])
    cosines = keys["similar"] @ keys["similar"].T
    assert 0.85 < np.mean(cosines[np.triu_indices(130, 1)]) < 0.95
    assert 0.2 < np.mean(np.all(keys["zero"] == 0, axis=-1)) < 0.8
    norms = np.linalg.norm(keys["short"], axis=-1)
    assert norms.max() <= 1.005
    assert norms.min() < 0.2


def test_same_name_and_seed_give_the_same_values() -> None:
    case = Case("x", (9,))
    first, again, other = (make_inputs(GATED, case, seed).arrays["v"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, make_inputs(GATED, replace(case, name="y")).arrays["v"])


def test_cases_that_say_nothing_about_an_operator_are_left_out() -> None:
    assert cases_for(GATED, QUICK) == QUICK
    assert all(case.gate == "soft" for case in cases_for(UNGATED, QUICK))
    left = cases_for(NO_KEYS, QUICK)
    assert all(case.keys == "random" and case.factor == "random" for case in left)
    assert {"gate reset", "gate mixed", "scale 0"} <= {case.name for case in left}
    assert not applies(NO_KEYS, Case("x", (1,), factor="one"))


def test_the_sets_hold_what_they_must() -> None:
    lengths = {case.lengths[0] for case in SMALL if len(case.lengths) == 1}
    assert lengths == set(LENGTHS) == {1, 63, 64, 65, 200}
    assert any(case.packed and 0 in case.lengths for case in SMALL)
    assert {(case.key_heads, case.value_heads) for case in GPU} >= {(2, 8), (16, 32), (16, 64)}
    for cases in SETS.values():
        assert len({case.name for case in cases}) == len(cases)


def test_defaults_of_arguments_without_heads() -> None:
    text = (SPECS / "gated_delta_rule.toml").read_text(encoding="utf-8").replace("V = 128", "V = 64")
    for default, want in {"K^-1/2": 128**-0.5, "V^-1/3": 0.25, "K^2": 16384.0, "0.5": 0.5}.items():
        spec = parse_spec(text.replace("K^-1/2", default), "x.toml")
        assert default_value(spec, spec.input("scale")) == pytest.approx(want, rel=1e-15)


def test_unequal_rows_must_be_packed() -> None:
    with pytest.raises(ValueError, match="must be packed"):
        make_inputs(GATED, Case("x", (3, 4)))
