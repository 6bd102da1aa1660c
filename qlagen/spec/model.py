"""What a spec file says, parsed and typed: the frozen record that the algebra stage takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qlagen.errors import Span

Shape = tuple[str, str]
"""Rows and columns of a matrix expression; each a dimension symbol (``C``, ``K``, ``V``) or ``"1"``. With M steps per
token ``CM`` is the number of steps in a chunk."""


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
    """Dimensions per token and head: ``()`` for a number, ``("K",)`` for a vector; before them the dimension that
    counts a token's steps, when there is a value for each."""
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
    per_step: bool = False
    """There is a value for each step of a token; ``dims[0]`` counts the steps."""

    @property
    def width(self) -> str:
        """The dimension of its vector, ``"1"`` for a number."""
        vector = self.dims[1:] if self.per_step else self.dims
        return vector[0] if vector else "1"


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
    It contains the lines `next_state`, K x V, and ``o``, V x 1. With several steps per token it has `first_state`
    instead, K x V, and lines below that one may use `next_state`."""
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
    steps: str = ""
    """The dimension symbol that counts the steps of a token; empty where a token is one step."""
    step: tuple[Stage, ...] = ()
    """One step of a token, where it has several: lines over the state before the step and all inputs, of which
    `next_state` is the state after it. The first step takes `first_state`, the others what the one before left."""

    @property
    def next_state(self) -> str:
        """The line of `recurrence`, or of `step`, that is the state after the token."""
        return f"{self.state}_next"

    @property
    def first_state(self) -> str:
        """The recurrence line that is the state before a token's first step, where it has several."""
        return f"{self.state}_start"

    @property
    def step_rows(self) -> str:
        """The symbol of a chunk's rows per step: C where a token is one step."""
        return f"C{self.steps}"

    def rows_of(self, tensor: Input) -> str:
        """The symbol of the rows of an input in a chunk."""
        return "1" if tensor.heads == "none" else self.step_rows if tensor.per_step else "C"

    def sizes(self, chunk: int | None = None, dims: Mapping[str, int] | None = None) -> dict[str, int]:
        """The size of every dimension symbol, ``"1"`` and a chunk's rows included. `chunk` is C, the spec's first by
        default; `dims` are sizes to use instead of the spec's."""
        rows = chunk or self.chunk[0]
        declared = dict(self.dims) if dims is None else dict(dims)
        return {"1": 1, "C": rows, self.step_rows: rows * declared.get(self.steps, 1), **declared}

    def recurrence_stage(self, name: str) -> Stage:
        """The recurrence line of that name; KeyError when there is none."""
        return {stage.name: stage for stage in self.recurrence}[name]

    def stage(self, name: str) -> Stage:
        """The chunk stage of that name; KeyError when there is none."""
        return {stage.name: stage for stage in self.stages}[name]

    def input(self, name: str) -> Input:
        """The input of that name; KeyError when there is none (names are checked at load)."""
        return {i.name: i for i in self.inputs}[name]
