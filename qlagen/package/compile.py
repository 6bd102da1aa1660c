"""One operator through all stages: spec, derivation, plan, schedules, kernel texts and the portable program."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.derivation import Derivation
from qlagen.algebra.derive import derive
from qlagen.emit.portable import emit_portable
from qlagen.package.kernel_files import KernelFile
from qlagen.program.ir import Plan
from qlagen.program.plan import build_plan
from qlagen.spec.model import OpSpec


@dataclass(frozen=True)
class CompiledOperator:
    """Everything of one operator that the library needs."""

    spec: OpSpec
    derivation: Derivation
    plan: Plan
    kernels: tuple[tuple[KernelFile, ...], ...]
    """For each program of the plan, its variants; empty for a library of portable implementations only."""
    portable: str
    """Text of the portable module."""


def compile_operator(spec: OpSpec, target: str) -> CompiledOperator:
    """Runs the stages. Raises QlagenError with the code of the stage that refuses."""
    derivation = derive(spec)
    plan = build_plan(derivation)
    return CompiledOperator(spec, derivation, plan, (), emit_portable(derivation))
