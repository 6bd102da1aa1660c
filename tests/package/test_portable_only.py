"""Operators that kernels cannot run yet: the library has their portable implementation, and says why no more."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from qlagen.algebra.derivation import Derivation
from qlagen.cli.simulate import variants
from qlagen.emit.portable import emit_portable
from qlagen.errors import QlagenError
from qlagen.package import compile as compiling
from qlagen.package.build import TARGET
from qlagen.package.compile import CompiledOperator, compile_operator, load_schedules
from qlagen.package.tree import PACKAGE, library_files
from qlagen.package.write import write_tree
from qlagen.program.ir import Plan
from qlagen.spec.model import OpSpec
from tests.algebra.operators import spec
from tests.package.conftest import ROOT
from tests.program.forms import small_spec, written

SCHEDULES = ROOT / "specs" / "schedules"
NAMES = ("kda", "comba", "gated_delta_product")
REASONS = {
    "kda": "kernels cannot run this operator yet: the log gate g has a value for each K channel",
    "comba": "kernels cannot run this operator yet: stage A reads a gate before the token's own decay",
    "gated_delta_product": "kernels cannot run this operator yet: a token has M steps",
}


def as_written(op: OpSpec) -> Derivation:
    """No search: the stages as they are."""
    return replace(written(op), proof=replace(written(op).proof, chunk=64))


@cache
def files() -> dict[str, str]:
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "derive_cached", as_written)
        for name in NAMES:
            op = small_spec(name)
            made.append(compile_operator(op, TARGET, load_schedules(spec(name), TARGET, SCHEDULES)))
    assert all(isinstance(item, CompiledOperator) and item.kernels == () for item in made)
    return library_files(tuple(made))


@pytest.mark.parametrize("name", NAMES)
def test_the_record_says_why(name: str) -> None:
    text = files()[f"{PACKAGE}/operators/{name}.py"]
    assert f'    obstacle="{REASONS[name]}",\n' in text
    assert "programs=(),\n    workspaces=(),\n" in text
    assert "_fwd" not in text
    assert "There are no kernels for it yet" in text
    assert files()[f"{PACKAGE}/portable/{name}.py"] == emit_portable(as_written(small_spec(name)))
    assert not [path for path in files() if path.startswith(f"{PACKAGE}/kernels/{name}")]
    assert f"- `chunk_{name}`: {REASONS[name]}\n" in files()["README.md"]


def test_steps_in_the_documentation() -> None:
    text = files()[f"{PACKAGE}/operators/gated_delta_product.py"]
    assert (
        "        S_start = a * S\n"
        "        M times, with S = S_start at first and S_next after that:\n"
        "            update = beta * (v - S^T @ k)\n"
        "            S_next = S + k @ update^T\n"
        "        o = scale * (S_next^T @ q)\n"
    ) in text
    assert 'TensorArgument("k", dims=("M", "K"), heads="key", data=True, normalise=True)' in text
    assert "k: [B, T, Hk, M, K], bf16 or fp16" in text


_USE = """
import torch
import qla_ops
from qla_ops.runtime.errors import ImplementationUnavailableError

assert not [name for name in qla_ops.__all__ if name.endswith("_fwd")]
generator = torch.Generator().manual_seed(0)
draw = lambda *shape: torch.randn(shape, generator=generator)
unit = lambda x: x / x.norm(dim=-1, keepdim=True)
q, k, v = draw(1, 70, 2, 5), unit(draw(1, 70, 2, 5)), draw(1, 70, 4, 3)
g, beta = -draw(1, 70, 4, 5).abs(), draw(1, 70, 4).sigmoid()
q.requires_grad_()
o, state = qla_ops.chunk_kda(q, k, v, g, beta, output_final_state=True)
assert o.shape == (1, 70, 4, 3) and state.shape == (1, 4, 5, 3)
o.sum().backward()
assert q.grad.isfinite().all() and q.grad.abs().sum() > 0
want = "kernels cannot run this operator yet: the log gate g has a value for each K channel"
assert qla_ops.chunk_kda.can_use(q, k, v, g, beta) == (False, want)
assert str(qla_ops.chunk_kda.explain(q, k, v, g, beta)) == f"chunk_kda: reference ({want})"
assert qla_ops.chunk_kda.warmup() == ()
try:
    qla_ops.chunk_kda(q, k, v, g, beta, strict=True)
except ImplementationUnavailableError as fault:
    assert want in str(fault)
else:
    raise AssertionError("strict")
k, v, beta = unit(draw(1, 70, 2, 3, 5)), draw(1, 70, 4, 3, 3), draw(1, 70, 4, 3).sigmoid()
o, state = qla_ops.chunk_gated_delta_product(q, k, v, g[..., 0], beta, output_final_state=True)
assert o.shape == (1, 70, 4, 3) and state.shape == (1, 4, 5, 3)
try:
    qla_ops.chunk_gated_delta_product(q, k, v, g[..., 0], beta[..., :2])
except ValueError as fault:
    assert "beta is of shape [1, 70, 4, 2]; needed: [B, T, Hv, M] = [1, 70, 4, 3]" in str(fault)
else:
    raise AssertionError("steps")
"""


def test_using_it(tmp_path: Path) -> None:
    write_tree(files(), tmp_path)
    command = [sys.executable, "-c", _USE]
    done = subprocess.run(command, cwd=tmp_path / "src", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_simulation_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(OPERATORS={"portable": SimpleNamespace(programs=())})
    monkeypatch.setitem(sys.modules, "qla_ops.runtime.choose", library)
    assert variants("portable") == []


def test_other_refusals_stay_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an operator that kernels cannot run yet goes without: a fault elsewhere is a fault."""

    def refuse(derivation: Derivation) -> Plan:
        raise QlagenError("E-PROGRAM", "no tile operations")

    monkeypatch.setattr(compiling, "derive_cached", as_written)
    monkeypatch.setattr(compiling, "build_plan", refuse)
    with pytest.raises(QlagenError, match="no tile operations"):
        compile_operator(small_spec("simple_gla"), TARGET, load_schedules(spec("simple_gla"), TARGET, SCHEDULES))
