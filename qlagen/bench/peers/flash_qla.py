"""FlashQLA: TileLang kernels, compiled for each head count, tile width and set of flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call, Implementation, gradients

if TYPE_CHECKING:
    import torch

_CHUNK = 64


class FlashQla(Implementation):
    distribution = "flash-qla"
    modules = ("flash_qla",)

    def __init__(self) -> None:
        import flash_qla

        self.library: Any = flash_qla

    def compile_key(self, case: Case) -> str:
        """The tile width follows from how many pieces the library cuts the sequences into, which is its own choice."""
        from flash_qla.ops.gated_delta_rule.chunk.cp import context

        training = case.direction == "backward"
        chunks = [-(-length // _CHUNK) for length in case.lengths]
        split, piece = context.autocp_decide(
            num_chunks=chunks,
            num_v_heads=case.value_heads,
            P=context.MULTI_PROCESSOR_COUNT,
            chunk=_CHUNK,
            is_train=training,
        )
        pieces = sum(-(-count // piece) for count in chunks) if split else len(chunks)
        enough = int(context.MULTI_PROCESSOR_COUNT * 0.7)
        width = next((width for width, share in ((128, 1), (64, 2)) if pieces * case.value_heads * share >= enough), 32)
        return f"{case.direction} {case.heads} {'split' if split else 'whole'} {width}"

    def forward(self, inputs: Inputs) -> Call:
        i = inputs
        settings = {"scale": i.scale, "initial_state": i.initial_state, "cu_seqlens": i.cu_seqlens}

        def call() -> Any:
            _, _, o, _, state, _ = self.library.chunk_gated_delta_rule_fwd(
                i.q, i.k, i.v, i.g, i.beta, output_final_state=True, output_h=False, **settings
            )
            return o, state

        return call

    def backward(self, inputs: Inputs) -> Call:
        i = inputs
        settings = {"scale": i.scale, "initial_state": i.initial_state, "cu_seqlens": i.cu_seqlens}
        # What the library's own autograd function does: the split's states are kept from the forward pass.
        g, A, _, _, _, kept = self.library.chunk_gated_delta_rule_fwd(
            i.q, i.k, i.v, i.g, i.beta, output_final_state=True, enable_fwd_cp_cache=True, is_train=True, **settings
        )
        return lambda: self.library.chunk_gated_delta_rule_bwd(
            i.q, i.k, i.v, g, i.beta, A, i.d_output, dht=i.d_final_state, cp_cache=kept, **settings
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
