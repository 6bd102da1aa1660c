"""All environment variables that the library reads.

| variable | meaning |
|---|---|
| ``QLA_OPS_CACHE`` | folder of built kernels; default ``~/.cache/qla_ops`` (``XDG_CACHE_HOME`` counts) |
| ``QLA_OPS_DEBUG`` | ``1``: check ranges and finiteness of every input and output (reads data back: slow) |
| ``CUDA_HOME`` | toolkit whose ``bin/nvcc`` builds kernels; default: ``nvcc`` on the path, ``/usr/local/cuda`` |
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where kernels are kept once built."""
    given = os.environ.get("QLA_OPS_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qla_ops"


def debug() -> bool:
    """Whether every call checks its values."""
    return os.environ.get("QLA_OPS_DEBUG", "0") not in ("", "0")


def cuda_home() -> str | None:
    """The toolkit folder that the user names, if any."""
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
