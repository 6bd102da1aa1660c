"""Chunk programs: one kernel as tile operations on named values, with symbolic dimensions and no hardware.

A program describes what is done for one chunk of `C` tokens of one value head. With a `Carry` the chunks of a
sequence are walked in order; without one they are independent. Values have one or two dimensions out of the
symbols ``C`` (tokens), ``K`` and ``V``, or none (numbers). Of an operator with several steps per token, M of them, what
is given for each step has ``CM`` rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dims = tuple[str, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory.

    `layout` ``token``: [tokens, heads, *dims[1:]]; dims[0] is C, or CM: then there is an axis for the steps after the
    heads. ``chunk``: [chunks, heads, *dims], padded to whole
    chunks (values that one generated kernel hands to another). ``state``: [sequences, heads, *dims].

    `lower` [C, C] of layout ``chunk`` is zero above the diagonal, whatever the inputs. Its tiles lie packed, see
    `qlagen.program.triangle`: [chunks, heads, packed entries].
    """

    name: str
    dims: Dims
    dtype: Literal["data", "float32"]
    head: Literal["key", "value"]
    layout: Literal["token", "chunk", "state"]
    lower: bool = False


@dataclass(frozen=True)
class Ref:
    """A leaf of an elementwise expression: a value, broadcast `along` the rows (a [rows] vector scales or shifts
    whole rows), along the columns, or everywhere (a number)."""

    name: str
    along: Literal["rows", "columns", "all"] | None = None


@dataclass(frozen=True)
class Number:
    """An integer constant, the same for every entry: a coefficient, or the 1 of ``1 - beta``."""

    value: int


@dataclass(frozen=True)
class Apply:
    operator: Literal["mul", "add", "sub"]
    left: ElementExpr
    right: ElementExpr


ElementExpr = Ref | Number | Apply


@dataclass(frozen=True)
class Load:
    """`name` = the chunk's tile of `tensor`. Rows past the sequence's end read as zero (a cumulative gate keeps its
    last value, because its producer padded it)."""

    name: str
    tensor: Tensor
    origin: str = ""
    key: int = 0
    """How many key heads after the first one of a kernel's iteration."""


@dataclass(frozen=True)
class Scan:
    """`name` [C] = inclusive cumulative sum of the [C] value `source` inside the chunk, in fp32; of each column, when
    it has columns."""

    name: str
    source: str
    origin: str = ""


@dataclass(frozen=True)
class Gate:
    """A decay atom of the cumulative log gate `source` (all exponents <= 0), or a 0/1 mask when `source` is None.

    ``from_start`` [C] exp(G); ``to_end`` [C] exp(G_last - G); ``total`` [] exp(G_last);
    ``decay`` [C, C] [i >= j] exp(G_i - G_j); ``lower`` [C, C] [i >= j]; ``strict`` [C, C] [i > j].
    The first three of a gate with columns have its columns too. With `exclusive` the source is a gate before each
    row's decay, and ``decay`` [i > j] exp(G_(i-1) - G_j). `rows` is the side of a mask.
    """

    name: str
    source: str | None
    kind: Literal["from_start", "to_end", "total", "decay", "lower", "strict"]
    origin: str = ""
    exclusive: bool = False
    rows: str = "C"


@dataclass(frozen=True)
class Gemm:
    """`name` = op(left) @ op(right) (+ `add`), accumulated in fp32, operands in the data type."""

    name: str
    left: str
    right: str
    transpose_left: bool = False
    transpose_right: bool = False
    add: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class Elementwise:
    name: str
    expr: ElementExpr
    origin: str = ""


@dataclass(frozen=True)
class Inverse:
    """`name` = (I + source)^-1 of a strictly lower [C, C] value, with the accuracy of an fp32 forward substitution; its
    columns times the [C] value `columns`, if there is one, before anything is rounded."""

    name: str
    source: str
    origin: str = ""
    columns: str | None = None


@dataclass(frozen=True)
class GatedDot:
    """`name` [C, C] = [i >= j] sum_c left_ic right_jc exp(G_ic - G_jc) of [C, K] values and a cumulative log gate
    `gate` with as many columns; with `exclusive` as for a `Gate`: [i > j], G_(i-1)."""

    name: str
    left: str
    right: str
    gate: str
    exclusive: bool = False
    origin: str = ""


@dataclass(frozen=True)
class Rows:
    """`name` = the rows of `source` in another order. ``before``: the row above, zeros in the first. ``each``: every
    row once for each step of its token. ``last``: the rows of each token's last step. `rows` is how many there are."""

    name: str
    source: str
    kind: Literal["before", "each", "last"]
    rows: str = "C"
    origin: str = ""


Operation = Load | Scan | Gate | Gemm | Elementwise | Inverse | GatedDot | Rows


@dataclass(frozen=True)
class Store:
    tensor: Tensor
    value: str


@dataclass(frozen=True)
class Carry:
    """The value carried from chunk to chunk in fp32, and the value that replaces it."""

    name: str
    dims: Dims
    next: str


@dataclass(frozen=True)
class Segment:
    """What a walk over part of a sequence stands for: S_out = M S_in + N. It makes N in the V columns of the carry and
    M in K further ones, which start from the identity and load zeros.

    `bound` is a cumulative log gate whose totals over the chunks, summed, bound log |M| where the inputs are within
    `condition` (empty: always); None: nothing bounds it.
    """

    bound: Tensor | None
    condition: str = ""


@dataclass(frozen=True)
class Program:
    """One kernel. `scalars` are run-time fp32 arguments; `segment` marks a walk that makes a segment's map."""

    name: str
    operator: str
    carry: Carry | None
    operations: tuple[Operation, ...]
    stores: tuple[Store, ...]
    scalars: tuple[str, ...] = ()
    segment: Segment | None = None


@dataclass(frozen=True)
class Plan:
    """All kernels of one operator, in launch order. Later kernels load chunk-layout tensors that earlier ones store."""

    operator: str
    dims: tuple[tuple[str, int], ...]
    """Sizes of C, K and V."""
    programs: tuple[Program, ...]
    segment_forms: tuple[Program, ...] = ()
    """Programs for the map of a segment, all for the same, of which a schedule takes the fastest; it runs before the
    last program. Without one a sequence is never cut."""
