"""FlashInfer: CuTe DSL kernels, forward only, with decays instead of their logarithms and the state V-first."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call, Implementation

if TYPE_CHECKING:
    import torch


class FlashInfer(Implementation):
    distribution = "flashinfer-python"
    modules = ("flashinfer",)
    compiles = "process"

    def __init__(self) -> None:
        from flashinfer.gdn_prefill import chunk_gated_delta_rule

        self.operator: Any = chunk_gated_delta_rule
        self.parameters = inspect.signature(chunk_gated_delta_rule).parameters

    def compile_key(self, case: Case) -> str:
        """Head counts are run-time values; few sequences and heads take the context-parallel kernels."""
        import torch

        processors = torch.cuda.get_device_properties(0).multi_processor_count
        return f"{case.direction} {'split' if 2 * len(case.lengths) * case.value_heads < processors else 'whole'}"

    def unsupported(self, case: Case) -> str:
        return super().unsupported(case) or ("has no backward pass" if case.direction == "backward" else "")

    def forward(self, inputs: Inputs) -> Call:
        import torch

        i = inputs
        decay = i.g[0].exp()
        state = i.initial_state.mT.contiguous()
        output, final = torch.empty_like(i.v[0]), torch.empty_like(state)
        longest = {"max_seqlen": max(i.case.lengths)} if "max_seqlen" in self.parameters else {}
        return lambda: self.operator(
            *(i.q[0], i.k[0], i.v[0], decay, i.beta[0], i.scale, state, True, i.cu_seqlens),
            output=output,
            output_state=final,
            **longest,
        )

    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        return {"o": returned[0][None], "final_state": returned[1].mT}
