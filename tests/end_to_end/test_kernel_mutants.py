"""Faults put into a committed kernel's text: the emulator must see every one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qlagen.algebra.derive import derive
from qlagen.spec import load_spec
from qlagen.verify.cases import SETS
from qlagen.verify.emulator import Mode
from qlagen.verify.problem import Problem, make_problems
from qlagen.verify.simulate_cases import Variant, simulate_variant
from tests.end_to_end.compiled import ROOT

OPERATOR = "gated_delta_rule"
FOLDER = ROOT / "generated" / "qla_ops" / "src" / "qla_ops" / "kernels" / OPERATOR
MODES = (Mode(), Mode(lazy=True), Mode(late=True, seed=1), Mode(lazy=True, late=True, seed=2))

MUTANTS = {
    "forward: a wait for wgmma dropped": ("forward_v64.py", "T.wait_wgmma(1)", "pass", 1),
    "forward: one group more left in flight": ("forward_v64.py", "T.wait_wgmma(0)", "T.wait_wgmma(1)", 1),
    "forward: one arrival too many expected": ("forward_v64.py", "T.alloc_barrier([4] *", "T.alloc_barrier([5] *", 1),
    "forward: one arrival too few expected": ("forward_v64.py", "T.alloc_barrier([4] *", "T.alloc_barrier([3] *", 1),
    "forward: the mask of the scores dropped": ("forward_v64.py", "row >= column", "row >= 0", 1),
    "forward: a fence dropped": ("forward_v64.py", "T.fence_proxy_async()", "pass", 1),
    "forward: the decay's diagonal kept whole": ("forward_v64.py", "row > column", "row >= 0", 1),
    "forward: V as it lies": ("forward_v64.py", "ptx_ldmatrix_x4_trans", "ptx_ldmatrix_x4", 1),
    "forward: O as it lies": ("forward_v64.py", "ptx_stmatrix_x4_trans", "ptx_stmatrix_x4", 1),
    "prepare: a factor of rows of another head": (
        "prepare_tile.py",
        "beta_ring[step % LOAD_STAGES, warp",
        "beta_ring[step % LOAD_STAGES, 3 - warp",
        1,
    ),
    "prepare: a gate of another head": (
        "prepare_tile.py",
        "G_ring[step % OUTPUT_STAGES, warp, 0]",
        "G_ring[step % OUTPUT_STAGES, 3 - warp, 0]",
        1,
    ),
    "prepare: a head too few": ("prepare_tile.py", "if warp < heads", "if warp < heads - 1", 1),
    "prepare: a sign flipped in the inverse": (
        "prepare_tile.py",
        "load_columns(factors, rows[c], -1.0f",
        "load_columns(factors, rows[c], 1.0f",
        1,
    ),
    "prepare: low parts left out of a product": ("prepare_tile.py", "left.low, right.high", "left.high, right.high", 1),
    "prepare: gated only below the middle": ("prepare_tile.py", "*= on * from[e]", "*= from[e]", 1),
    "prepare: the columns' scale dropped": (
        "prepare_tile.py",
        "invert<true, true, true, ",
        "invert<true, true, false, ",
        1,
    ),
    "prepare: the rows scaled instead of the columns": (
        "prepare_tile.py",
        "load_columns(scales, columns[c]",
        "load_columns(scales, rows[c]",
        1,
    ),
    "prepare: half the diagonal scaled by the other half's": (
        "prepare_tile.py",
        "scale_octet(scales + lane / 8 * 8 + 32 * t",
        "scale_octet(scales + lane / 8 * 8",
        1,
    ),
    "prepare: the scale of another head": (
        "prepare_tile.py",
        "beta_ring[step % LOAD_STAGES, warp",
        "beta_ring[step % LOAD_STAGES, 3 - warp",
        2,
    ),
    "prepare: what lies above the diagonal is not cleared": (
        "prepare_tile.py",
        "OUTPUT_STAGES * HEADS * CHUNK * CHUNK * 2",
        "0",
        1,
    ),
    "prepare: a strip of a triangle too narrow": (
        "prepare_tile.py",
        "PACKED_ENTRIES // 64, 64",
        "PACKED_ENTRIES // 32, 32",
        1,
    ),
    "forward: a strip of a triangle from a line too early": (
        "forward_v64.py",
        "value_head, 16:48, 0:CHUNK",
        "value_head, 15:47, 0:CHUNK",
        1,
    ),
    "prepare: a named barrier dropped": ("prepare_tile.py", "T.sync_threads(TILE_BARRIER, ", "(", 3),
}


@pytest.fixture(scope="module")
def problems() -> tuple[Problem, ...]:
    spec = load_spec(ROOT / "specs" / f"{OPERATOR}.toml")
    chosen = [case for case in SETS["small"] if case.name in ("T=200", "packed, one empty")]
    return make_problems(spec, derive(spec).chosen, chosen, 0, 1)


@pytest.mark.parametrize("name", MUTANTS)
def test_is_seen(name: str, problems: tuple[Problem, ...], tmp_path: Path) -> None:
    mutated, old, new, occurrence = MUTANTS[name]
    files = []
    for file in ("prepare_tile.py", "forward_v64.py"):
        text = (FOLDER / file).read_text("utf-8")
        if file == mutated:
            parts = text.split(old)
            assert len(parts) > occurrence, f"{old!r} is not in {file} {occurrence} times"
            text = old.join(parts[:occurrence]) + new + old.join(parts[occurrence:])
        (tmp_path / file).write_text(text, "utf-8")
        files.append(tmp_path / file)
    rows = simulate_variant(Variant(OPERATOR, tuple(files)), problems, MODES)
    assert not all(row.ok for row in rows)
