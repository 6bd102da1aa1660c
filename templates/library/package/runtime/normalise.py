"""Unit vectors of q and k, which ``use_qk_l2norm_in_kernel`` asks for: one launch where the kernels run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from qla_ops.runtime import loader

EPSILON = 1e-6
"""Added to the squared norm, as in other libraries."""
LONGEST = 256
"""Elements of a row that `unit_vectors.cu` takes at most."""
AT_ONCE = 4
"""Tensors of one launch."""
_DEVICE = "cuda"
_TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_MOST_ROWS = 2**31 - 2**16


def unit_vectors(tensors: Sequence[Tensor], with_kernel: bool) -> list[Tensor]:
    """The tensors [B, T, heads, K] with every row divided by its norm, computed in fp32 (fp64 for fp64).

    `with_kernel` allows the CUDA kernel; it takes tensors of one shape and type. Under `torch.compile` the torch
    operations are traced, which the compiler fuses itself. Raises BuildError and LoadError.
    """
    if with_kernel and _kernel_takes(tensors):
        groups = [tensors[first : first + AT_ONCE] for first in range(0, len(tensors), AT_ONCE)]
        return [unit for group in groups for unit in launch(group)]
    return [_unit(tensor) for tensor in tensors]


def launch(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One launch of `unit_vectors.cu` for up to `AT_ONCE` tensors of one shape and type."""
    rows = [_dense_heads(tensor.detach()) for tensor in tensors]
    first = rows[0]
    batch, length, heads, width = first.shape
    unit = torch.empty((len(rows), *first.shape), dtype=first.dtype, device=first.device)
    padded = rows + [first] * (AT_ONCE - len(rows))
    numbers = (_TYPES[first.dtype], len(rows), batch * length * heads, heads, width)
    function = loader.function(loader.UNIT_VECTORS, loader.UNIT_VECTORS.data_types[0])
    function(*padded, unit, *numbers, *(_token_stride(tensor) for tensor in padded), loader.NOT_EARLY)
    return unit.unbind()


def _kernel_takes(tensors: Sequence[Tensor]) -> bool:
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or not tensors:
        return False
    first = tensors[0]
    if first.device.type != _DEVICE or first.dtype not in _TYPES or first.dim() != 4 or first.shape[-1] > LONGEST:
        return False
    rows, like = first.numel() // first.shape[-1], (first.shape, first.dtype, first.device)
    alike = all(type(x) is Tensor and (x.shape, x.dtype, x.device) == like for x in tensors)
    return alike and 0 < rows <= _MOST_ROWS


def _dense_heads(tensor: Tensor) -> Tensor:
    """The tensor when its tokens are equally far apart and the heads of a token dense, as in a slice of a packed
    projection; a copy otherwise."""
    batch, length, heads, width = tensor.shape
    strides = tensor.stride()
    dense = strides[3] == 1 or width == 1
    dense = dense and (strides[2] == width or heads == 1)
    dense = dense and (batch == 1 or length == 1 or strides[0] == length * strides[1])
    return tensor if dense else tensor.contiguous()


def _token_stride(tensor: Tensor) -> int:
    """Elements from one token to the next."""
    return tensor.stride(1) if tensor.shape[1] > 1 else tensor.stride(0)


def _unit(vectors: Tensor) -> Tensor:
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPSILON)).to(vectors.dtype)
