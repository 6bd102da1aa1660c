"""Target facts: limits derived from them, and errors."""

from __future__ import annotations

from importlib import resources

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.target import load_target, parse_target, target_names


def test_limits_of_a_cta() -> None:
    target = load_target("sm_90a")
    assert target.shared_limit(1) == 232448
    assert target.shared_limit(2) == 115712
    assert target.registers_without_setmaxnreg(512, 1) == 128
    assert target.registers_without_setmaxnreg(224, 2) == 144
    assert target.registers_without_setmaxnreg(64, 1) == 255
    assert target.register_pool(512, 1) == 65536
    assert target.register_pool(384, 1) == 384 * 168
    assert target.register_pool(256, 1) == 65536


def test_costs_of_plans() -> None:
    """Of kernels with a state, for the nearest tile that was measured; others have none."""
    plan = load_target("sm_90a").plan
    assert plan.chunk_nanoseconds("carried", 128) > plan.chunk_nanoseconds("carried", 64) > (0, 0)
    full, alone = plan.chunk_nanoseconds("segment", 64)
    assert full > alone > 0
    assert plan.chunk_nanoseconds("segment", 32) == (full, alone)
    assert plan.chunk_nanoseconds("carried", 256) == plan.chunk_nanoseconds("carried", 128)
    assert plan.chunk_nanoseconds("chunk_parallel", 128) == (0, 0)


def test_an_unknown_target() -> None:
    assert target_names() == ("sm_90a",)
    with pytest.raises(QlagenError, match="E-TARGET") as caught:
        load_target("sm90a")
    text = caught.value.render()
    assert "there is no target 'sm90a'" in text
    assert "known targets: sm_90a" in text
    assert "did you mean 'sm_90a'?" in text


def test_a_target_file_with_a_fault() -> None:
    text = resources.files("qlagen.targets").joinpath("sm_90a.toml").read_text(encoding="utf-8")
    with pytest.raises(QlagenError, match="E-KEY"):
        parse_target(text.replace("scan = ", "scam = "), "t.toml")
    with pytest.raises(QlagenError, match="E-VALUE"):
        parse_target(text.replace("granule = 8", "granule = 0"), "t.toml")
    with pytest.raises(QlagenError, match="E-VALUE"):
        parse_target(text.replace("undecayed_percent = 25", "undecayed_percent = 101"), "t.toml")
