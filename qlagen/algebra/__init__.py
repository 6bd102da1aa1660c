"""The algebra stage: `derive` takes a spec to the form to run, proven equal to the spec's token recurrence."""

from qlagen.algebra.build import build_form
from qlagen.algebra.derivation import Cost, Derivation, Form, Proof, Refusal, Step
from qlagen.algebra.derive import derive
from qlagen.algebra.explain import explain, explain_json
from qlagen.algebra.prove import prove
from qlagen.algebra.show import show_derivation

__all__ = [
    "Cost",
    "Derivation",
    "Form",
    "Proof",
    "Refusal",
    "Step",
    "build_form",
    "derive",
    "explain",
    "explain_json",
    "prove",
    "show_derivation",
]
