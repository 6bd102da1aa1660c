"""flash-linear-attention: Triton kernels, with its hand-over to other libraries switched off."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call, Implementation, gradients

if TYPE_CHECKING:
    import torch


class Fla(Implementation):
    distribution = "flash-linear-attention"
    modules = ("fla",)
    operators = ("gated_delta_rule", "delta_rule", "simple_gla")
    environment: ClassVar = {"FLA_CACHE_RESULTS": "0"}
    """Timings taken while sixteen processes share the GPU must not choose the kernels of the timed process."""

    def __init__(self) -> None:
        os.environ["FLA_FLASH_QLA"] = "0"
        from fla.ops.delta_rule import chunk as ungated
        from fla.ops.gated_delta_rule import chunk
        from fla.ops.simple_gla import chunk as uncorrected

        self.library: Any = chunk
        self.ungated: Any = ungated
        self.uncorrected: Any = uncorrected

    def before_compiling(self) -> None:
        """Compile and run every candidate of the autotuner once, without timing it."""
        import triton.testing

        def run_once(kernel: Call, *_: Any, quantiles: Any = None, **__: Any) -> Any:
            kernel()
            return [1.0, 1.0, 1.0] if quantiles else 1.0

        triton.testing.do_bench = run_once

    def forward(self, inputs: Inputs) -> Call:
        i = inputs
        options: dict[str, Any] = {"scale": i.scale, "initial_state": i.initial_state}
        options |= {"output_final_state": True, "cu_seqlens": i.cu_seqlens}

        def corrected() -> Any:
            returned = self._forward(i)
            return returned[1], returned[3]

        def ungated() -> Any:
            return self.ungated.chunk_delta_rule(i.q, i.k, i.v, i.beta, **options)

        def uncorrected() -> Any:
            return self.uncorrected.chunk_simple_gla(i.q, i.k, i.v, i.g, **options)

        traits = i.case.traits
        return uncorrected if not traits.correction else corrected if traits.gate else ungated

    def _forward(self, i: Inputs) -> Any:
        return self.library.chunk_gated_delta_rule_fwd(
            i.q, i.k, i.v, i.g, i.beta, i.scale, i.initial_state, True, cu_seqlens=i.cu_seqlens
        )

    def backward(self, inputs: Inputs) -> Call:
        i = inputs
        g, _, A, _, state, _ = self._forward(i)
        return lambda: self.library.chunk_gated_delta_rule_bwd(
            *(i.q, i.k, i.v, g, i.beta, A, i.scale, state, i.d_output, i.d_final_state), cu_seqlens=i.cu_seqlens
        )

    def public(self, inputs: Inputs) -> Call:
        i = inputs
        return lambda: self.library.chunk_gated_delta_rule(
            *(i.q, i.k, i.v, i.g, i.beta, i.scale),
            initial_state=i.initial_state,
            output_final_state=True,
            cu_seqlens=i.cu_seqlens,
        )

    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        return gradients(returned) if direction == "backward" else {"o": returned[0], "final_state": returned[1]}
