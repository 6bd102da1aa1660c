"""How large an error may be: what an independent emulation of the same roundings shows, not a guess.

The operator's chunked form is emulated with the roundings that a kernel has (`qlagen.verify.emulate`), `DRAWS` times
with different luck, and compared with the oracle as an implementation would be. The budget of a sequence and head is
`FACTOR` times the largest of these errors, and at least one rounding of the output.

Why twice: over 36 further draws of 13 cases, an honest emulation stayed below 1.4 times the largest of four draws in
nine of them and below 1.9 in the four ill-conditioned ones, so a sound kernel passes. A cumulative gate kept in bf16,
an inverse by low-precision products and a missing mask of the tail exceed the budget of some case, as tests show.
Heads that get the same sort of values share the largest error, since it is the same sort of luck; with gates that
differ from head to head each has its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qlagen.algebra.derivation import Form
from qlagen.spec.model import OpSpec
from qlagen.verify.cases import Case, Inputs
from qlagen.verify.compare import output_errors, sequence_spans, state_errors
from qlagen.verify.emulate import Rounding, emulate
from qlagen.verify.rounding import UNIT_ROUNDOFF

Array = npt.NDArray[np.float64]

FACTOR = 2.0
DRAWS = 4
CEILING = 0.1
"""No budget is larger: past it the numbers say nothing, and a broken emulation must not let a kernel through."""
SINGLE_FLOOR = 2.0**-16
"""What fp32 arithmetic costs that the emulation leaves out: sums, and a fast exponential of an exponent down to -70."""
GATES_BY_HEAD = ("model", "mixed")
"""Kinds of gate that differ from head to head."""


def error_budgets(
    spec: OpSpec, form: Form, case: Case, inputs: Inputs, output: Array, state: Array
) -> tuple[Array, Array]:
    """Budgets [N, Hv] of the relative L2 errors of o and of the final state.

    `form` is what the kernels compute for a chunk; `output` [B, T, Hv, V] and `state` [N, Hv, K, V] are the oracle's.
    """
    spans = sequence_spans(output.shape[0], output.shape[1], inputs.cu_seqlens)
    of_output, of_state = np.zeros((2, *state.shape[:2]))
    for draw in range(DRAWS):
        got, carried = emulate(spec, form, inputs, Rounding(case.dtype, draw))
        of_output = np.maximum(of_output, output_errors(got, output, spans, case.dtype))
        of_state = np.maximum(of_state, state_errors(carried, state))
    floor = max(UNIT_ROUNDOFF[case.dtype], SINGLE_FLOOR)
    return _allow(of_output, floor, case), _allow(of_state, SINGLE_FLOOR, case)


def _allow(errors: Array, floor: float, case: Case) -> Array:
    if case.gate not in GATES_BY_HEAD:
        errors = np.broadcast_to(errors.max(axis=1, keepdims=True, initial=0), errors.shape)
    return np.minimum(np.maximum(FACTOR * errors, floor), CEILING)
