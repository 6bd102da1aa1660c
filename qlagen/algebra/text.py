"""Expressions as text, in the language of a spec's ``[stages]``."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.algebra.ir import Node, Term, terms_of, transpose

_CALLS = {
    "inverse": "inv_unit_lower",
    "from_start": "from_start",
    "to_end": "to_end",
    "total": "total",
    "decay": "decay",
    "row_sum": "row_sum",
    "column_sum": "column_sum",
    "row_minus_column": "row_minus_column",
    "suffix_sum": "suffix_sum",
    "following": "following",
    "step_sum": "step_sum",
    "head_sum": "head_sum",
    "at_last": "at_last",
    "gapply": "gapply",
    "gapply_transposed": "gapply_transposed",
    "before": "before",
    "gdot": "gdot",
    "each": "each",
    "last": "last",
}
_ATOM, _PRODUCT, _SUM = 2, 1, 0


def show(node: Node, names: Mapping[Node, str] | None = None) -> str:
    """The expression as spec text. A node in `names` (or the transpose of one) is shown by its name."""
    return _Writer(names or {}).text(node)[0]


class _Writer:
    def __init__(self, names: Mapping[Node, str]) -> None:
        self.names = names

    def text(self, node: Node) -> tuple[str, int]:
        """Text and how tightly it binds."""
        if node in self.names:
            return self.names[node], _ATOM
        if node.op != "input" and (turned := transpose(node)) in self.names:
            return f"{self.names[turned]}^T", _ATOM
        if node.op == "input":
            return node.value, _ATOM
        if node.op in ("ones", "last_row"):
            return ("1" if node.op == "ones" else "last_row"), _ATOM
        if node.op == "transpose":
            return f"{self.operand(node.args[0], _ATOM)}^T", _ATOM
        if node.op == "matmul":
            return " @ ".join(self.operand(a, _ATOM) for a in node.args), _PRODUCT
        if node.op in ("multiply", "mask"):
            return self.product(node.args or (node,))
        if node.op == "add":
            return self.sum(terms_of(node))
        return f"{_CALLS[node.op]}({', '.join(self.text(a)[0] for a in node.args)})", _ATOM

    def operand(self, node: Node, binding: int) -> str:
        text, bound = self.text(node)
        return text if bound >= binding else f"({text})"

    def product(self, factors: tuple[Node, ...]) -> tuple[str, int]:
        masks = [f for f in factors if f.op == "mask"]
        rest = [f for f in factors if f.op != "mask"]
        text = self.text(rest[0])[0] if len(rest) == 1 else " * ".join(self.operand(f, _ATOM) for f in rest) or "1"
        if not masks:
            return text, _PRODUCT
        return f"{'stril' if masks[0].value == 'strict' else 'tril'}({text})", _ATOM

    def sum(self, terms: tuple[Term, ...]) -> tuple[str, int]:
        parts: list[str] = []
        for coefficient, node in sorted(terms, key=lambda t: t[0] < 0):
            sign = "-" if coefficient < 0 else "+" if parts else ""
            number = f"{abs(coefficient)} * " if abs(coefficient) != 1 else ""
            body = self.operand(node, _ATOM if number else _PRODUCT)
            parts.append(f"{sign} {number}{body}" if parts else f"{sign}{number}{body}")
        return " ".join(parts) or "0", _SUM
