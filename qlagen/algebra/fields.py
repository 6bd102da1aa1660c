"""Arithmetic in which expressions are evaluated: float64, float64 with rounded operands, and a prime field.

Each field also says what represents a cumulative log gate ``G``: floats hold G itself; the prime field holds
``exp(G)``, the running product of the decays ``a = exp(g)``, taken as free unknowns. In those unknowns every decay
atom is a polynomial, which is what makes an exact evaluation possible. Gates are [C, n], with one column or one for
each channel; `before` and `each` give gates in the same representation. An `exclusive` gate is one that `before` gave:
row i of it is what the gate itself has in row i - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Field(Protocol):
    """What an evaluation needs: `product` is the exact matrix product and `matmul` the one that hardware makes;
    `reduce` brings sums and products of a few values back into the field."""

    @property
    def dtype(self) -> Any: ...
    def product(self, left: Array, right: Array) -> Array: ...
    def matmul(self, left: Array, right: Array) -> Array: ...
    def reduce(self, value: Array) -> Array: ...
    def from_start(self, gate: Array) -> Array: ...
    def to_end(self, gate: Array) -> Array: ...
    def total(self, gate: Array) -> Array: ...
    def before(self, gate: Array) -> Array: ...
    def each(self, gate: Array, steps: int) -> Array: ...
    def decay(self, gate: Array, exclusive: bool = False) -> Array: ...
    def gdot(self, left: Array, right: Array, gate: Array, exclusive: bool = False) -> Array: ...


def round_bfloat16(value: Array) -> Array:
    """To the nearest bfloat16, ties to even; the result is float64 again. NaN and infinity are not handled."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def round_float16(value: Array) -> Array:
    """To the nearest IEEE half, ties to even; the result is float64 again."""
    return np.asarray(value).astype(np.float16).astype(np.float64)


def own_rows(gate: Array, exclusive: bool) -> Array:
    """The gate of the columns' side: the gate itself, or that of which this one is the gate before. Its last row is not
    known then and stands in for itself: no entry below the diagonal reads it."""
    return np.concatenate([gate[1:], gate[-1:]]) if exclusive else gate


def below_diagonal(rows: int, exclusive: bool) -> Array:
    """[rows, rows] where i >= j, with `exclusive` where i > j."""
    return np.tri(rows, k=-1 if exclusive else 0, dtype=bool)


@dataclass(frozen=True)
class Float64:
    """float64 over a cumulative log gate. With `round_operand`, both operands of every matrix product are rounded
    first, as tensor cores take them; sums stay exact, like their wide accumulators."""

    round_operand: Callable[[Array], Array] | None = None
    dtype: Any = np.float64

    def product(self, left: Array, right: Array) -> Array:
        return np.asarray(left @ right)

    def matmul(self, left: Array, right: Array) -> Array:
        if self.round_operand is not None:
            left, right = self.round_operand(left), self.round_operand(right)
        return self.product(left, right)

    def reduce(self, value: Array) -> Array:
        return value

    def from_start(self, gate: Array) -> Array:
        return np.asarray(np.exp(gate))

    def to_end(self, gate: Array) -> Array:
        return np.asarray(np.exp(gate[-1:] - gate))

    def total(self, gate: Array) -> Array:
        return np.asarray(np.exp(gate[-1:]))

    def before(self, gate: Array) -> Array:
        return np.concatenate([np.zeros_like(gate[:1]), gate[:-1]])

    def each(self, gate: Array, steps: int) -> Array:
        return np.repeat(gate, steps, axis=0)

    def decay(self, gate: Array, exclusive: bool = False) -> Array:
        return self._between(gate, exclusive)[:, :, 0]

    def gdot(self, left: Array, right: Array, gate: Array, exclusive: bool = False) -> Array:
        """Rounding operands here is that of the ungated factors: it is as large, relative to each entry, as that of
        the gated ones which tensor cores take."""
        if self.round_operand is not None:
            left, right = self.round_operand(left), self.round_operand(right)
        return np.asarray(np.einsum("ic,jc,ijc->ij", left, right, self._between(gate, exclusive)))

    def _between(self, gate: Array, exclusive: bool) -> Array:
        """[C, C, n] exp(G_i - G_j) on the lower triangle, else 0."""
        keep = below_diagonal(len(gate), exclusive)[:, :, None]
        difference = gate[:, None] - own_rows(gate, exclusive)[None]
        return np.asarray(np.exp(np.where(keep, difference, -np.inf)))


@dataclass(frozen=True)
class PrimeField:
    """Integers modulo a prime below 2^31, exact. A gate is the running product of its decays, none of them zero."""

    prime: int
    dtype: Any = np.int64

    def product(self, left: Array, right: Array) -> Array:
        """Exact: 16-bit halves multiply in float64, whose sums stay below 2^53 for inner dimensions below 2^20. All
        four products of halves are one product of stacked ones, which costs the overhead of one."""
        rows, columns = len(left), right.shape[1]
        stacked_l = np.concatenate(np.divmod(left, 65536), axis=0).astype(np.float64)
        stacked_r = np.concatenate(np.divmod(right, 65536), axis=1).astype(np.float64)
        halves = (stacked_l @ stacked_r).astype(np.int64) % self.prime
        high, low = halves[:rows], halves[rows:]
        middle = (high[:, columns:] + low[:, :columns]) % self.prime
        upper = (high[:, :columns] * 65536 + middle) % self.prime
        return np.asarray((upper * 65536 + low[:, columns:]) % self.prime)

    matmul = product

    def reduce(self, value: Array) -> Array:
        return np.asarray(value % self.prime)

    def reciprocal(self, value: Array) -> Array:
        """Inverse of every entry, by Fermat; entries are not zero."""
        result, base, exponent = np.ones_like(value), value % self.prime, self.prime - 2
        while exponent:
            if exponent & 1:
                result = result * base % self.prime
            base = base * base % self.prime
            exponent >>= 1
        return result

    def from_start(self, gate: Array) -> Array:
        return gate

    def to_end(self, gate: Array) -> Array:
        return np.asarray(gate[-1:] * self.reciprocal(gate) % self.prime)

    def total(self, gate: Array) -> Array:
        return gate[-1:]

    def before(self, gate: Array) -> Array:
        return np.concatenate([np.ones_like(gate[:1]), gate[:-1]])

    def each(self, gate: Array, steps: int) -> Array:
        return np.repeat(gate, steps, axis=0)

    def decay(self, gate: Array, exclusive: bool = False) -> Array:
        return self.gdot(np.ones_like(gate), np.ones_like(gate), gate, exclusive)

    def gdot(self, left: Array, right: Array, gate: Array, exclusive: bool = False) -> Array:
        """In a field the gate factors out of the product."""
        rows = left * gate % self.prime
        columns = right * self.reciprocal(own_rows(gate, exclusive)) % self.prime
        return np.where(below_diagonal(len(gate), exclusive), self.product(rows, columns.T), 0)
