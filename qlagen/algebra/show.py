"""The stable text form of a derivation, for `qlagen show` and golden tests."""

from __future__ import annotations

from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.explain import proof_line, stage_lines


def show_derivation(derivation: Derivation) -> str:
    """Both forms by stages, the names of the rules in order, the bill of the chosen form and the proof."""
    cost = derivation.chosen_cost
    spec = derivation.spec
    dims = " ".join(f"{d}={n}" for d, n in (("C", derivation.proof.chunk), *spec.dims))
    lines = [f"operator {spec.name}", f"dims {dims}", f"state {spec.state}"]
    lines += [f"output {spec.output}", f"next state {spec.state_output}", ""]
    lines += _form("textbook", derivation.textbook)
    lines += ["rules", *(f"  {step.rule}" for step in derivation.steps), ""]
    lines += _form("chosen", derivation.chosen)
    lines += [
        "bill",
        f"  multiply_adds {cost.multiply_adds:.0f}",
        f"  rounded {cost.rounded:.0f}",
        f"  elementwise {cost.elementwise:.0f}",
        f"  exps {cost.exps:.0f}",
        f"  hbm_bytes {cost.hbm_bytes:.0f}",
        f"  chain_gemms {cost.chain_gemms}",
        "",
        proof_line(derivation),
    ]
    return "\n".join(lines) + "\n"


def _form(title: str, form: Form) -> list[str]:
    return [title, *(f"  {line}" for line in stage_lines(form)), ""]
