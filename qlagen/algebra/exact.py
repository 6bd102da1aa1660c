"""Second proofs with sympy: small sizes as polynomials, and the identities of the decay atoms as exponents.

At small C every output entry is expanded as a polynomial with integer coefficients in all inputs and decays, on both
sides: no randomness and no shared arithmetic with `qlagen.algebra.prove`, though the same evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.derivation import Form
from qlagen.algebra.fields import Array
from qlagen.algebra.gates import EXPONENTS, GateAtom, GateIdentity
from qlagen.algebra.trial import Point, run_form, run_recurrence
from qlagen.spec.model import OpSpec


@dataclass(frozen=True)
class Polynomials:
    """Arrays of polynomials. A gate holds its decays, one unknown for each row and channel."""

    dtype: Any = object

    def product(self, left: Array, right: Array) -> Array:
        return np.asarray(left @ right)

    matmul = product

    def reduce(self, value: Array) -> Array:
        return value

    def from_start(self, gate: Array) -> Array:
        return np.asarray(np.multiply.accumulate(gate, axis=0))

    def to_end(self, gate: Array) -> Array:
        later = np.concatenate([gate[1:], np.ones_like(gate[:1])])
        return np.asarray(np.multiply.accumulate(later[::-1], axis=0)[::-1])

    def total(self, gate: Array) -> Array:
        return self.from_start(gate)[-1:]

    def before(self, gate: Array) -> Array:
        return np.concatenate([np.ones_like(gate[:1]), gate[:-1]])

    def each(self, gate: Array, steps: int) -> Array:
        """A token decays before its first step."""
        rows = np.ones((len(gate), steps, gate.shape[1]), dtype=object)
        rows[:, 0] = gate
        return rows.reshape(len(gate) * steps, gate.shape[1])

    def decay(self, gate: Array, exclusive: bool = False) -> Array:
        return self._between(gate, exclusive)[:, :, 0]

    def gdot(self, left: Array, right: Array, gate: Array, exclusive: bool = False) -> Array:
        return np.asarray((left[:, None] * right[None] * self._between(gate, exclusive)).sum(axis=2))

    def _between(self, gate: Array, exclusive: bool) -> Array:
        """[C, C, n]: the product of the decays after row j up to row i, zero above the diagonal. With `exclusive` the
        gate holds the decays before each row, so that the product begins one row later and the diagonal is zero."""
        rows, columns = gate.shape
        result = np.zeros((rows, rows, columns), dtype=object)
        first = int(exclusive)
        for start in range(rows - first):
            result[start + first, start] = 1
            for row in range(start + first + 1, rows):
                result[row, start] = result[row - 1, start] * gate[row]
        return result


def equals_recurrence(spec: OpSpec, form: Form, *, chunk: int = 3, size: int = 2) -> bool:
    """Whether a form is the spec's token recurrence as polynomials, at C = `chunk` and all other dimensions `size`."""
    sizes = spec.sizes(chunk, {d: size for d, _ in spec.dims})
    nodes = chunk_inputs(spec)
    shapes = {name: [sizes[d] for d in node.shape] for name, node in nodes.items()}
    names = [f"{name}_{i}_{j}" for name, (rows, columns) in shapes.items() for i in range(rows) for j in range(columns)]
    _, *generators = sympy.ring(names, sympy.ZZ)
    values: dict[str, Array] = {}
    for name, shape in shapes.items():
        count = shape[0] * shape[1]
        values[name] = np.array(generators[:count], dtype=object).reshape(shape)
        generators = generators[count:]
    point = Point(values, {i.chunk_symbol: values[i.chunk_symbol] for i in spec.inputs if i.role == "log_gate"})
    want = run_recurrence(spec, point, sizes, Polynomials())
    have = run_form(form, point, sizes, Polynomials())
    return all(bool(np.all(a == b)) for a, b in zip(want, have, strict=True))


def holds(identity: GateIdentity) -> bool:
    """Whether an identity between decay atoms is true for all gates: the quotient of its sides simplifies to one."""
    return bool(sympy.powsimp(_product(identity.left) / _product(identity.right)) == 1)


def is_safe(atom: GateAtom) -> bool:
    """Whether an atom's exponent is <= 0 on the lower triangle: written in the steps of G, which are <= 0, from the
    start to j, from j to i and from i to the end, no step has a negative coefficient."""
    first, second, last = EXPONENTS[atom]
    return min(first + second + last, first + last, last) >= 0


def _product(atoms: tuple[GateAtom, ...]) -> Any:
    symbols = sympy.symbols("G_i G_j G_last", real=True)
    exponents = (sum(c * g for c, g in zip(EXPONENTS[atom], symbols, strict=True)) for atom in atoms)
    return sympy.Mul(*(sympy.exp(e) for e in exponents), evaluate=False)
