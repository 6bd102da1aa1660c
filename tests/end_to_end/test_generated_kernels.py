"""Every committed kernel: compiled for sm_90a without a spill or a serialised wgmma, and right in the emulator."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from qlagen.algebra.derive import derive
from qlagen.emit.compile_check import check_compiled
from qlagen.emit.load import load_kernel
from qlagen.spec import load_spec
from qlagen.verify.cases import SETS, cases_for
from qlagen.verify.emulator import STANDARD_MODES, lower_kernel
from qlagen.verify.problem import make_problems
from qlagen.verify.simulate_cases import Variant, simulate_variant
from tests.end_to_end.compiled import ROOT

KERNELS = ROOT / "generated" / "qla_ops" / "src" / "qla_ops" / "kernels"
SPECS = sorted((ROOT / "specs").glob("*.toml"))
FILES = sorted(path for path in KERNELS.glob("*/*.py") if path.name != "__init__.py")


def launches(operator: str) -> list[tuple[Path, ...]]:
    """Every choice of one variant for each kernel of an operator, prepare before forward, for whole sequences; and one
    with each kernel that makes segments between them."""
    files = [path for path in FILES if path.parent.name == operator]
    of = {
        name: [path for path in files if path.stem.startswith(f"{name}_")] for name in ("prepare", "segment", "forward")
    }
    whole = list(itertools.product(of["prepare"], of["forward"]))
    return whole + [(of["prepare"][0], path, of["forward"][-1]) for path in of["segment"] if whole]


CHOICES = [(operator.stem, files) for operator in SPECS for files in launches(operator.stem) if files]
"""None of operators that only have a portable implementation."""


def test_every_operator_has_kernels() -> None:
    assert {operator for operator, _ in CHOICES} >= {"gated_delta_rule", "delta_rule", "simple_gla"}
    assert {len(files) for _, files in CHOICES} == {2, 3}
    assert {path for _, files in CHOICES for path in files} == set(FILES)


@pytest.mark.parametrize("stem", ["forward_v128", "segment_v64"])
def test_tilelang_adds_no_fence(stem: str) -> None:
    """It would put one in front of products, in every thread of the role that carries the state, where it takes a call
    for a write to shared memory."""
    file = KERNELS / "gated_delta_rule" / f"{stem}.py"
    module = load_kernel(file)
    lowered = lower_kernel(module.build("bfloat16"), module.PASS_CONFIGS).device_source
    own = file.read_text("utf-8").count("T.fence_proxy_async()")
    assert lowered.count("tl::fence_proxy_async()") == own


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_compiles_without_spill_or_serialised_products(file: Path) -> None:
    reports = check_compiled([file])
    assert [report.data_type for report in reports] == ["bfloat16", "float16"]
    assert all(report.spill_bytes == 0 and not report.messages for report in reports)


@pytest.mark.parametrize(
    ("operator", "files"), CHOICES, ids=lambda x: x if isinstance(x, str) else "-".join(path.stem for path in x[1:])
)
def test_agrees_with_the_recurrence_in_every_order(operator: str, files: tuple[Path, ...]) -> None:
    spec = load_spec(ROOT / "specs" / f"{operator}.toml")
    problems = make_problems(spec, derive(spec).chosen, cases_for(spec, SETS["small"]), 0, 1)
    assert len({mode.seed for mode in STANDARD_MODES if mode.seed is not None}) >= 4
    assert {mode.lazy for mode in STANDARD_MODES} == {False, True}
    rows = simulate_variant(Variant(operator, files), problems, STANDARD_MODES)
    assert len(rows) == 2 * len(problems) * len(STANDARD_MODES)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
