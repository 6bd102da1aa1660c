"""The result of the algebra stage: the form to run, how it was reached, its bill and its proof."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.algebra.ir import Node
from qlagen.spec.model import OpSpec


@dataclass(frozen=True)
class Form:
    """An operator on one chunk as expressions. `stages` maps the spec's stage names, in file order, to what they
    have become (stages that nothing uses any more are gone); the two roots are among its values."""

    output: Node
    """[C, V]"""
    state: Node
    """The next carried state, [K, V]."""
    stages: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class Cost:
    """The bill of a form, per chunk and value head."""

    multiply_adds: float
    elementwise: float
    exps: float
    hbm_bytes: float
    chain_gemms: int
    """Matrix products on the path from the carried state to its successor."""
    rounded: float = 0.0
    """Entries of matrix product operands that are rounded to the data type: not inputs, zeros or exact ones."""


@dataclass(frozen=True)
class Step:
    """One applied rewrite: expressions as text, and the bill after it."""

    rule: str
    before: str
    after: str
    cost: Cost


@dataclass(frozen=True)
class Refusal:
    """A rewrite that would apply to the chosen form but for a prerequisite that the spec does not grant."""

    rule: str
    expression: str
    reason: str


@dataclass(frozen=True)
class Proof:
    """A form equals the spec's token recurrence: evaluated at random points of prime fields at the sizes given."""

    chunk: int
    key_dim: int
    value_dim: int
    degree: int
    trials: int
    bound: float
    """Probability of accepting a wrong form, at most."""


@dataclass(frozen=True)
class Derivation:
    spec: OpSpec
    textbook: Form
    chosen: Form
    steps: tuple[Step, ...]
    textbook_cost: Cost
    chosen_cost: Cost
    proof: Proof
    refusals: tuple[Refusal, ...] = ()
