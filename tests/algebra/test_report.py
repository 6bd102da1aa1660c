"""Listings, LaTeX, the whole report as text and for tools, and its plot."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from qlagen.algebra import ir, ir_adjoint
from qlagen.algebra.cache import derive_backward_cached
from qlagen.algebra.latex import latex, latex_listing, latex_name
from qlagen.algebra.ledger import canonical
from qlagen.algebra.listing import make_listing, upright
from qlagen.algebra.plots import draw_pareto
from qlagen.algebra.report import Report, make_report, report_json, report_latex, report_text
from qlagen.algebra.stacking import stacked_products
from qlagen.errors import QlagenError
from qlagen.spec.load import load_spec

from .operators import SPECS

GOLDEN = Path(__file__).parent / "golden"
K = ir.input_node("K", ("C", "K"))
S = ir.input_node("S", ("K", "V"))
V = ir.input_node("V", ("C", "V"))
G = ir.input_node("G", ("C", "1"))
STRICT = ir.multiply(ir.mask("strict"), ir.decay(G))
BETA = ir.input_node("beta", ("C", "1"))


@cache
def report(name: str, group: int = 1, backward: bool = True) -> Report:
    derived = derive_backward_cached(load_spec(SPECS / f"{name}.toml"))
    return make_report(derived.forward, derived if backward else None, group=group)


class TestListing:
    def test_shared_matrices_get_a_line(self) -> None:
        product = ir.matmul(K, S)
        rest = ir.subtract(V, product)
        results = (("x", ir.row_sum(ir.multiply(product, rest))), ("y", ir.matmul(ir.transpose(rest), V)))
        assert make_listing(results, ()).text() == [
            "T1 = K @ S",
            "T2 = V - T1",
            "x  = row_sum(T2 * T1)",
            "y  = T2^T @ V",
        ]

    def test_names_that_are_taken_are_avoided(self) -> None:
        product = ir.matmul(K, S)
        results = (("x", ir.add(ir.row_sum(product), BETA)), ("y", ir.matmul(ir.transpose(product), V)))
        assert make_listing(results, (), taken=("T1",)).text()[0] == "T2 = K @ S"
        assert make_listing(results, (("P", product),)).text()[0] == "P = K @ S"

    def test_upright(self) -> None:
        product = ir.matmul(K, S)
        assert upright(ir.transpose(product)) is upright(product) is product


class TestLatex:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("beta", "\\beta"),
            ("K", "K"),
            ("S1", "S_{1}"),
            ("Vn", "\\mathit{Vn}"),
            ("dVn", "\\mathrm{d}\\mathit{Vn}"),
            ("dbeta", "\\mathrm{d}\\beta"),
            ("T12", "T_{12}"),
            ("KAPPA", "\\kappa"),
            ("a_b", "\\mathit{a\\_b}"),
        ],
    )
    def test_names(self, name: str, text: str) -> None:
        assert latex_name(name) == text

    @pytest.mark.parametrize(
        ("node", "text"),
        [
            (ir.matmul(K, S), "K S"),
            (ir.transpose(ir.from_start(G)), "\\left(e^{G}\\right)^{\\top}"),
            (ir.multiply(ir.to_end(G), V), "e^{G_{C} - G} \\odot V"),
            (ir.multiply(ir.total(G), S), "e^{G_{C}} \\odot S"),
            (ir.subtract(V, ir.matmul(K, S)), "V - K S"),
            (ir.matmul(ir.decay(G), ir.linear(((2, V), (-1, ir.matmul(K, S))))), "\\Gamma \\left(2 V - K S\\right)"),
            (
                ir.inverse(STRICT),
                "\\left(I + \\mathrm{stril}\\left(\\Gamma\\right)\\right)^{-1}",
            ),
            (ir_adjoint.suffix_sum(BETA), "\\mathrm{suffixsum}\\left(\\beta\\right)"),
            (ir.zero(("C", "V")), "0"),
        ],
    )
    def test_expressions(self, node: ir.Node, text: str) -> None:
        assert latex(node) == text

    @pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule", "simple_gla"])
    def test_is_well_formed(self, name: str) -> None:
        text = report_latex(report(name))
        assert text.count("{") == text.count("}")
        assert text.count("\\left(") == text.count("\\right)")
        assert text.count("\\begin{aligned}") == text.count("\\end{aligned}") == 2
        assert not re.search(r"\^\{[^{}]*\}\^|\}\}\^\{\\top\}\^", text)  # no double superscripts

    def test_forward(self) -> None:
        lines = latex_listing(report("simple_gla", backward=False).forward_listing).splitlines()
        assert lines[-2] == "  S_{1} &= e^{G_{C}} \\odot S + K^{\\top} \\left(e^{G_{C} - G} \\odot V\\right)"


class TestReport:
    @pytest.mark.parametrize("group", [1, 4])
    def test_text_is_pinned(self, group: int, golden: Callable[[Path, str], None]) -> None:
        golden(GOLDEN / f"gated_delta_rule.report{group}.txt", report_text(report("gated_delta_rule", group)))

    def test_text_without_the_backward_pass(self) -> None:
        text = report_text(report("simple_gla", backward=False))
        assert "Backward" not in text
        assert "M may be skipped: log |M| <= sum of g" in text

    def test_for_tools(self) -> None:
        value = json.loads(json.dumps(report_json(report("gated_delta_rule"))))
        forward, backward = value["forward"], value["backward"]
        assert (forward["textbook_madds"], forward["madds"]) == (5_832_704, 5_308_416)
        assert (backward["textbook_madds"], backward["madds"]) == (15_204_352, 12_582_912)
        for side in (forward, backward):
            assert {"exps", "hbm_bytes", "chain_gemms", "steps", "pareto", "latex"} <= set(side)
            assert all(set(step) == {"rule", "before", "after"} for step in side["steps"])
            assert all({"madds", "serial_clocks", "hbm_bytes", "chain_gemms"} <= set(p) for p in side["pareto"])
        assert any(p["chain_gemms"] == 2 for p in forward["pareto"])
        assert list(backward["stages"])[-6:] == ["dq", "dk", "dv", "dg", "dbeta", "dS"]
        assert value["context_parallel"]["skip"]["bound"] == "log_gate_sum"
        assert value["context_parallel"]["state_only"]["chain_gemms"] == 2

    def test_groups(self) -> None:
        value = report_json(report("gated_delta_rule", 4))
        assert value["group"] == 4
        assert (value["forward"]["madds"], value["forward"]["hbm_bytes"]) == (4_521_984, 61 * 1024)
        assert value["backward"]["madds"] == 12_582_912 - 0.75 * 5 * 64 * 64 * 128  # products with K or Q alone shared
        assert value["backward"]["steps"][-1]["rule"] in ("sum heads first", "merge head sums")

    def test_without_the_backward_pass(self) -> None:
        assert report_json(report("simple_gla", backward=False))["backward"] is None


class TestStacking:
    def test_keys_and_queries(self) -> None:
        value = report_json(report("gated_delta_rule"))
        assert value["forward"]["stacked"] == ["[Q; K] @ K^T", "[Q; K] @ S"]
        assert "[Q; K] @ S" in report_text(report("delta_rule"))

    def test_of_products_that_need_each_other_only_one_joins(self) -> None:
        square = ir.input_node("X", ("C", "C"))
        first = ir.matmul(square, V)
        nested = ir.matmul(ir.multiply(ir.matmul(first, ir.transpose(V)), square), V)
        other = ir.matmul(ir.transpose(square), V)
        (group,) = stacked_products((first, nested, other), "S")
        assert group == (first, other)

    def test_a_product_is_in_one_group(self) -> None:
        nodes = (ir.matmul(K, S), ir.matmul(V, ir.transpose(S)), ir.matmul(K, ir.transpose(K)))
        groups = stacked_products(nodes, "S")
        members = [canonical(n) for group in groups for n in group]
        assert len(members) == len(set(members))


class TestPlot:
    def test_writes_a_picture(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        path = tmp_path / "pareto.png"
        draw_pareto(report("gated_delta_rule"), path)
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert path.stat().st_size > 10_000

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        with pytest.raises(QlagenError, match=r"E-PLOT.*cannot write"):
            draw_pareto(report("simple_gla", backward=False), tmp_path / "none" / "x.png")

    def test_without_matplotlib(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(QlagenError, match=r"E-PLOT.*not installed") as caught:
            draw_pareto(report("simple_gla", backward=False), tmp_path / "x.png")
        assert caught.value.hints == ["pip install 'qlagen[plots]'"] or caught.value.hints == (
            "pip install 'qlagen[plots]'",
        )
