"""What a spec declares about the values of its inputs, for rules that hold only within ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from qlagen.algebra.ir import Node, factors_of, is_strictly_lower, kind, split_coefficient, transpose
from qlagen.algebra.text import show
from qlagen.spec.model import OpSpec

GROWTH_LIMIT = 2.0
"""Largest beta |k|^2 for which no product of I - beta k k^T grows: its eigenvalue 1 - beta |k|^2 stays in [-1, 1]."""


@dataclass(frozen=True)
class Facts:
    """Bounds of every input by its chunk symbol; infinite when nothing is declared."""

    ranges: Mapping[str, tuple[float, float]]
    norms: Mapping[str, float]
    """Upper bound of the Euclidean norm of each token's vector."""
    key_inputs: frozenset[str] = frozenset()
    """Inputs that all value heads of a key head have in common."""

    @staticmethod
    def of(spec: OpSpec) -> Facts:
        ranges = {
            i.chunk_symbol: (-inf if i.range[0] is None else i.range[0], inf if i.range[1] is None else i.range[1])
            for i in spec.inputs
        }
        norms = {i.chunk_symbol: inf if i.norm is None else i.norm for i in spec.inputs}
        return Facts(ranges, norms, frozenset(i.chunk_symbol for i in spec.inputs if i.heads != "value"))

    def unbounded_growth(self, strict: Node) -> str | None:
        """Why (I + strict)^-1 may have large entries, or None when its entries stay within `GROWTH_LIMIT`.

        Granted for ``stril(b * X @ X^T)`` with 0 <= b |x|^2 <= 2, which makes the inverse a product of contractions.
        """
        coefficient, rest = split_coefficient(strict)
        factors = [f for f in factors_of(rest) if f.op != "mask"]
        grams = [
            f for f in factors if f.op == "matmul" and f.args[1] is transpose(f.args[0]) and f.args[0].op == "input"
        ]
        scales = [f for f in factors if f.op == "input" and kind(f) in ("column", "scalar")]
        if (
            not is_strictly_lower(strict)
            or len(grams) != 1
            or len(grams) + len(scales) != len(factors)
            or coefficient != 1
        ):
            return f"no bound is known for (I + L)^-1 with L = {show(strict)}"
        vector = grams[0].args[0].value
        norm = self.norms.get(vector, inf)
        low, high = 1.0, 1.0
        for scale in scales:
            bottom, top = self.ranges.get(scale.value, (-inf, inf))
            low, high = (low * bottom if bottom >= 0 else -inf), high * top
        if low >= 0 and high * norm * norm <= GROWTH_LIMIT:
            return None
        product = " ".join([*(s.value for s in scales), f"|{vector}|^2"])
        return f"needs 0 <= {product} <= 2; declared: {self._declared(scales, vector)}"

    def _declared(self, scales: list[Node], vector: str) -> str:
        parts = [f"{s.value} in {_interval(self.ranges.get(s.value, (-inf, inf)))}" for s in scales]
        norm = self.norms.get(vector, inf)
        parts.append(f"no norm of {vector}" if norm == inf else f"|{vector}| <= {norm:g}")
        return ", ".join(parts)


def _interval(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f"{'(' if low == -inf else '['}{low:g}, {high:g}{')' if high == inf else ']'}"
