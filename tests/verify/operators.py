"""Operators for the tests of the verifier: the oracle behind the library's signature, and broken variants of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qlagen.spec.model import OpSpec
from qlagen.verify.cases import default_value
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run

Outputs = tuple[torch.Tensor, torch.Tensor | None]
Change = Callable[[torch.Tensor, torch.Tensor], Any]


def oracle_operator(spec: OpSpec, change: Change | None = None) -> Callable[..., Outputs]:
    """The operator of `spec`, as accurate as its output types. `change` may spoil o and the final state in place."""
    recurrence = recurrence_of(spec)
    names = [item.name for item in spec.inputs if item.heads != "none"]

    def operator(
        *tensors: torch.Tensor,
        scale: float | None = None,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        state_v_first: bool = False,
        impl: str | None = None,
        **named: torch.Tensor,
    ) -> Outputs:
        given = dict(zip(names, tensors, strict=False)) | named
        arrays: dict[str, Any] = {name: given[name].detach().double().cpu().numpy() for name in names}
        arrays["scale"] = default_value(spec, spec.input("scale")) if scale is None else scale
        state = None if initial_state is None else initial_state.detach().double().cpu().numpy()
        state = state if state is None or not state_v_first else np.swapaxes(state, -1, -2)
        offsets = None if cu_seqlens is None else cu_seqlens.cpu().numpy()
        o, final = (torch.from_numpy(array) for array in run(recurrence, arrays, offsets, state))
        o, final = o.to(given["v"]), final.to(device=o.device, dtype=torch.float32)
        if change is not None:
            change(o, final)
        final = final.transpose(-1, -2) if state_v_first else final
        return o, final if output_final_state else None

    return operator
