"""What kernels can run. The programs of other operators are for the portable implementation alone."""

from __future__ import annotations

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Op, topological
from qlagen.errors import QlagenError, Span
from qlagen.spec.model import OpSpec

UNSUPPORTED = "E-UNSUPPORTED"
"""The code of an operator that is right, but that kernels cannot run yet."""

_WITHOUT_KERNELS: dict[Op, str] = {
    "before": "reads a gate before the token's own decay",
    "gdot": "has a gate for each channel inside a product",
}


def check_kernels(spec: OpSpec, form: Form) -> None:
    """Kernels take one step per token and gates of one value per token and head, after the token's decay.

    Raises E-UNSUPPORTED for others: the portable implementation runs them.
    """
    if spec.steps:
        raise _unsupported(f"a token has {spec.steps} steps", spec.step[0].span)
    for item in spec.inputs:
        if item.role == "log_gate" and item.dims:
            raise _unsupported(f"the log gate {item.name} has a value for each {item.width} channel", item.span)
    for name, stage in form.stages:
        for node in topological((stage,)):
            if node.op in _WITHOUT_KERNELS:
                raise _unsupported(f"stage {name} {_WITHOUT_KERNELS[node.op]}", spec.stage(name).span)


def _unsupported(what: str, span: Span) -> QlagenError:
    return QlagenError(
        UNSUPPORTED,
        f"kernels cannot run this operator yet: {what}",
        span=span,
        notes=["kernels take one step per token, and log gates with one value per token and head"],
        hints=["its portable implementation runs everywhere, and autograd differentiates it"],
    )
