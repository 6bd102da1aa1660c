"""Expressions as LaTeX, in the notation of the papers: Γ for the decay between tokens, G for cumulative log gates.

``\\odot`` is the product entry by entry; a column vector beside a matrix scales its rows, a row vector its columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from qlagen.algebra.ir import Node, terms_of, transpose
from qlagen.algebra.listing import Listing

_GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi"),
    *("rho", "sigma", "tau", "phi", "chi", "psi", "omega"),
)
_ATOM, _POWER, _PRODUCT, _SUM = 3, 2, 1, 0
_FUNCTIONS = {
    "row_sum": "rowsum",
    "column_sum": "colsum",
    "suffix_sum": "suffixsum",
    "row_minus_column": "rowminuscol",
}


def latex_listing(listing: Listing) -> str:
    """An ``aligned`` environment with a line for each line of the listing."""
    lines = [
        f"  {latex_name(name)} &= {latex(node, listing.names_for(place))}"
        for place, (name, node) in enumerate(listing.lines)
    ]
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}\n"


def latex(node: Node, names: Mapping[Node, str] | None = None) -> str:
    """The expression in mathematics mode. A node in `names`, or the transpose of one, is written by its name."""
    return _Writer(names or {}).text(node)[0]


def latex_name(name: str) -> str:
    """A name: its digits are an index, Greek letters are symbols, a leading d marks a cotangent."""
    cotangent = re.fullmatch(r"d([A-Z].*|q|k|v|g|beta)", name)
    if cotangent:
        return f"\\mathrm{{d}}{latex_name(cotangent[1])}"
    split = re.fullmatch(r"([A-Za-z]+?)_?(\d*)", name)
    if split is None:
        return "\\mathit{" + name.replace("_", "\\_") + "}"
    letters, digits = split[1], split[2]
    symbol = letters if len(letters) == 1 else f"\\mathit{{{letters}}}"
    symbol = f"\\{letters.lower()}" if letters.lower() in _GREEK else symbol
    return f"{symbol}_{{{digits}}}" if digits else symbol


class _Writer:
    def __init__(self, names: Mapping[Node, str]) -> None:
        self.names = names

    def text(self, node: Node) -> tuple[str, int]:
        """LaTeX and how tightly it binds."""
        if node in self.names:
            return latex_name(self.names[node]), _ATOM
        if node.op != "input" and (turned := transpose(node)) in self.names:
            return latex_name(self.names[turned]) + "^{\\top}", _POWER
        match node.op:
            case "input":
                return latex_name(node.value), _ATOM
            case "ones":
                return "1", _ATOM
            case "last_row":
                return "e_C", _ATOM
            case "mask":
                return "\\mathrm{tril}(1)" if node.value == "lower" else "\\mathrm{stril}(1)", _ATOM
            case "transpose":
                return f"{self._operand(node.args[0], _ATOM)}^{{\\top}}", _POWER
            case "matmul":
                return " ".join(self._operand(a, _POWER) for a in node.args), _PRODUCT
            case "multiply":
                return self._product(node)
            case "add":
                return self._sum(node)
        return self._function(node)

    def _operand(self, node: Node, binding: int) -> str:
        text, bound = self.text(node)
        return text if bound >= binding else f"\\left({text}\\right)"

    def _product(self, node: Node) -> tuple[str, int]:
        masks = [f for f in node.args if f.op == "mask"]
        rest = [f for f in node.args if f.op != "mask"]
        text = " \\odot ".join(self._operand(f, _POWER) for f in rest)
        if not masks:
            return text, _PRODUCT
        name = "stril" if masks[0].value == "strict" else "tril"
        return f"\\mathrm{{{name}}}\\left({text}\\right)", _ATOM

    def _sum(self, node: Node) -> tuple[str, int]:
        parts: list[str] = []
        for coefficient, term in sorted(terms_of(node), key=lambda t: t[0] < 0):
            sign = "-" if coefficient < 0 else "+" if parts else ""
            number = f"{abs(coefficient)} " if abs(coefficient) != 1 else ""
            parts.append(f"{sign} {number}{self._operand(term, _PRODUCT)}".strip())
        return " ".join(parts) or "0", _SUM

    def _function(self, node: Node) -> tuple[str, int]:
        arguments = [self.text(a)[0] for a in node.args]
        match node.op:
            case "inverse":
                return f"\\left(I + {arguments[0]}\\right)^{{-1}}", _POWER
            case "from_start":
                return f"e^{{{arguments[0]}}}", _POWER
            case "to_end":
                return f"e^{{{arguments[0]}_{{C}} - {arguments[0]}}}", _POWER
            case "total":
                return f"e^{{{arguments[0]}_{{C}}}}", _POWER
            case "decay":
                return "\\Gamma", _ATOM
        name = _FUNCTIONS.get(node.op, node.op)
        return f"\\mathrm{{{name}}}\\left({', '.join(arguments)}\\right)", _ATOM
