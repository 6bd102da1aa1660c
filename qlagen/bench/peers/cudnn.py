"""The cuDNN frontend's drop-in for flash-linear-attention, where it runs its own kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call, Implementation, UnsupportedError

if TYPE_CHECKING:
    import torch


class Cudnn(Implementation):
    distribution = "nvidia-cudnn-frontend"
    modules = ("cudnn",)
    compiles = "process"

    def __init__(self) -> None:
        from cudnn.fla import last_path
        from cudnn.fla.gated_delta_rule import make_chunk_gated_delta_rule

        self.last_path: Any = last_path
        self.operator: Any = make_chunk_gated_delta_rule(_declined)

    def forward(self, inputs: Inputs) -> Call:
        i = inputs
        state = i.initial_state.mT.contiguous()

        def call() -> Any:
            return self.operator(
                *(i.q, i.k, i.v, i.g, i.beta),
                scale=i.scale,
                initial_state=state,
                output_final_state=True,
                state_v_first=True,
                cu_seqlens=i.cu_seqlens,
            )

        call()
        if self.last_path() != "native":
            raise UnsupportedError(f"hands this call back to flash-linear-attention ({self.last_path()})")
        return call

    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        return {"o": returned[0], "final_state": returned[1].mT}


def _declined(*_: Any, **__: Any) -> None:
    """Stands where the library would call flash-linear-attention, which is a peer of its own."""
