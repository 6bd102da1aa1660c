"""A spec decides: an edited stage changes the kernel, other sizes make other kernels, and all of them verify."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode
from tests.end_to_end.compiled import compiled, edited, simulated, spec_text

MODES = (Mode(), Mode(lazy=True, late=True, seed=3))
CASES = ("T=65", "packed, one empty")

WRITES_WHOLE_VALUES = (
    ('update  = "beta * (v - decayed^T @ k)"', 'update  = "v - beta * (decayed^T @ k)"'),
    ('U  = "A @ (beta * V)"', 'U  = "A @ V"'),
)
"""The factor beta only erases; what is written is the whole value."""


def test_an_edited_stage_changes_the_kernel_and_verifies(tmp_path: Path) -> None:
    text = spec_text("gated_delta_rule")
    original, changed = compiled(text), compiled(edited(text, WRITES_WHOLE_VALUES))
    assert [kernel.text for kernel in original.kernels[0]] != [kernel.text for kernel in changed.kernels[0]]
    loads_beta = ["beta_ring" in forward.kernels[-1][0].text for forward in (original, changed)]
    assert loads_beta == [False, True], "beta moves into A's columns only where both of its uses allow it"
    rows = simulated(changed, tmp_path, MODES, CASES)
    assert len(rows) == 2 * len(MODES) * len(CASES)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]


def test_the_kernel_of_the_unedited_spec_does_not_pass_for_the_edited_one(tmp_path: Path) -> None:
    text = spec_text("gated_delta_rule")
    original, changed = compiled(text), compiled(edited(text, WRITES_WHOLE_VALUES))
    other = {name: getattr(original, name) for name in ("plan", "schedules", "kernels", "portable")}
    mixed = replace(changed, **other)
    rows = simulated(mixed, tmp_path, MODES[:1], CASES[:1])
    assert not any(row.ok for row in rows if row.output == "o")


def test_an_edit_of_the_stages_alone_is_refused() -> None:
    with pytest.raises(QlagenError, match="E-PROOF"):
        compiled(edited(spec_text("gated_delta_rule"), WRITES_WHOLE_VALUES[1:]))


@pytest.mark.parametrize("operator", ["gated_delta_rule", "delta_rule", "simple_gla"])
@pytest.mark.parametrize(("key", "value"), [(64, 64), (128, 64)])
def test_other_sizes(operator: str, key: int, value: int, tmp_path: Path) -> None:
    sizes = (("\nK = 128", f"\nK = {key}"), ("\nV = 128", f"\nV = {value}"))
    built = compiled(edited(spec_text(operator), sizes))
    rows = simulated(built, tmp_path, MODES, CASES)
    assert len(rows) == 2 * len(MODES) * len(CASES)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
