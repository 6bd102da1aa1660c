"""What a spec file says, parsed and typed: the frozen record that the algebra stage takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qlagen.errors import Span

Shape = tuple[str, str]
"""Rows and columns of a matrix expression; each a dimension symbol (``C``, ``K``, ``V``) or ``"1"``."""


@dataclass(frozen=True)
class Name:
    """A reference to an input, the carried state or an earlier stage."""

    name: str
    shape: Shape
    span: Span


@dataclass(frozen=True)
class Integer:
    """An integer literal; it only scales an expression."""

    value: int
    shape: Shape
    span: Span


@dataclass(frozen=True)
class Negate:
    operand: Expression
    shape: Shape
    span: Span


@dataclass(frozen=True)
class Transpose:
    operand: Expression
    shape: Shape
    span: Span


@dataclass(frozen=True)
class Binary:
    """``+``, ``-`` and ``*`` broadcast (a ``1`` side stretches); ``@`` is the matrix product."""

    operator: Literal["+", "-", "*", "@"]
    left: Expression
    right: Expression
    shape: Shape
    span: Span


@dataclass(frozen=True)
class Call:
    """One of the functions of the expression language, see `qlagen.spec.functions`."""

    function: str
    arguments: tuple[Expression, ...]
    shape: Shape
    span: Span


Expression = Name | Integer | Negate | Transpose | Binary | Call


@dataclass(frozen=True)
class Input:
    """One tensor argument of the operator, per token and head unless `heads` is ``"none"``."""

    name: str
    dims: tuple[str, ...]
    """Dimensions per token and head: ``()`` for a number, ``("K",)`` for a vector."""
    heads: Literal["key", "value", "none"]
    dtype: Literal["data", "float32"]
    """``data`` is bf16 or fp16, chosen by the caller; ``float32`` accepts fp32, bf16 and fp16 and is computed in
    fp32."""
    role: Literal["plain", "log_gate"]
    range: tuple[float | None, float | None]
    """Declared lower and upper bound of every entry; None means unbounded."""
    norm: float | None
    """Declared upper bound of the vector's Euclidean norm."""
    default: str | None
    """Default of a scalar argument, for example ``K^-1/2``."""
    chunk_symbol: str
    """Its name in ``[stages]``: upper case for vectors and for the cumulative log gate."""
    token_symbol: str
    """Its name in ``[recurrence]``: the input's own name; for a log gate its key `decay`, which names ``exp(g)``."""
    span: Span


@dataclass(frozen=True)
class Stage:
    """One named line of ``[stages]`` or ``[recurrence]``."""

    name: str
    expression: Expression
    text: str
    span: Span


@dataclass(frozen=True)
class OpSpec:
    """A whole spec file. Stages are in file order; a stage may use those before it."""

    name: str
    file: str
    digest: str
    """SHA-256 of the file's text."""
    state: str
    chunk: tuple[int, ...]
    dims: tuple[tuple[str, int], ...]
    """Sizes of the dimension symbols, ``C`` excluded, in file order."""
    inputs: tuple[Input, ...]
    recurrence: tuple[Stage, ...]
    """One token, over token symbols (column vectors), in file order; a line may use those before it.
    It contains the lines `next_state`, K x V, and ``o``, V x 1."""
    stages: tuple[Stage, ...]
    output: str
    """The stage that is the chunk's output, C x V."""
    state_output: str
    """The stage that is the next chunk's state."""
    gradients: tuple[str, ...]
    """Inputs (and the state) that a backward pass differentiates."""
    head_names: tuple[str, str] = ("Hk", "Hv")
    """What the spec calls the number of key heads and of value heads."""
    summary: str = ""
    """One line for docstrings and tables."""
    references: tuple[str, ...] = ()
    """Papers that define the operator."""

    @property
    def next_state(self) -> str:
        """The recurrence line that is the state after the token."""
        return f"{self.state}_next"

    def recurrence_stage(self, name: str) -> Stage:
        """The recurrence line of that name; KeyError when there is none."""
        return {stage.name: stage for stage in self.recurrence}[name]

    def stage(self, name: str) -> Stage:
        """The chunk stage of that name; KeyError when there is none."""
        return {stage.name: stage for stage in self.stages}[name]

    def input(self, name: str) -> Input:
        """The input of that name; KeyError when there is none (names are checked at load)."""
        return {i.name: i for i in self.inputs}[name]
