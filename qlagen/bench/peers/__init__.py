"""The implementations that the benchmark knows: ours and its peers, each one small class.

To add a peer, write a subclass of `Implementation` and name it in `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Callable

from qlagen.bench.peers.base import Implementation
from qlagen.bench.peers.cudnn import Cudnn
from qlagen.bench.peers.fla import Fla
from qlagen.bench.peers.flash_qla import FlashQla
from qlagen.bench.peers.flashinfer import FlashInfer
from qlagen.bench.peers.ours import Ours, Portable

REGISTRY: dict[str, Callable[[], Implementation]] = {
    "qla_ops": Ours,
    "flash_qla": FlashQla,
    "flashinfer": FlashInfer,
    "fla": Fla,
    "cudnn": Cudnn,
    "portable": Portable,
}
"""By name, in the order of the tables. Making one raises ImportError when it cannot run here."""

OURS = "qla_ops"

__all__ = ["OURS", "REGISTRY", "Implementation"]
