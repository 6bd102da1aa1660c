"""Binding arguments by name to the host `call`, in buffers whose surroundings are watched."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from qlagen.errors import QlagenError, did_you_mean
from qlagen.verify.emulator.lower import Parameter

_GUARD_BYTES = 4096
_ALIGNMENT = 256
_SCALARS: dict[str, type[Any]] = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int": ctypes.c_int32,
    "unsigned int": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
}


class Tensor(Protocol):
    """What is used of a torch CPU tensor."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...


def read_bytes(tensor: Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def write_bytes(tensor: Tensor, data: bytes) -> None:
    ctypes.memmove(tensor.data_ptr(), data, len(data))


class GuardedBuffer:
    """A copy of a tensor's bytes between two guard zones of ones (NaN): a read outside gives NaN, a write is found."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._bytes = tensor.numel() * tensor.element_size()
        self._memory = ctypes.create_string_buffer(self._bytes + 2 * _GUARD_BYTES + _ALIGNMENT)
        start = ctypes.addressof(self._memory) + _GUARD_BYTES
        self.address = (start + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        ctypes.memset(self.address - _GUARD_BYTES, 0xFF, self._bytes + 2 * _GUARD_BYTES)
        ctypes.memmove(self.address, tensor.data_ptr(), self._bytes)

    def held(self) -> tuple[int, ctypes.Array[ctypes.c_char], int]:
        """Its address, a copy of what it holds, and how many bytes."""
        return self.address, ctypes.create_string_buffer(ctypes.string_at(self.address, self._bytes)), self._bytes

    def is_intact(self) -> bool:
        guard = b"\xff" * _GUARD_BYTES
        before = ctypes.string_at(self.address - _GUARD_BYTES, _GUARD_BYTES)
        after = ctypes.string_at(self.address + self._bytes, _GUARD_BYTES)
        return before == guard and after == guard

    def copy_back(self) -> None:
        ctypes.memmove(self._tensor.data_ptr(), self.address, self._bytes)


class Arguments:
    """The C arguments for one call, made from values by name; dynamic dimensions may be left out."""

    def __init__(self, parameters: Sequence[Parameter], values: Mapping[str, Any]) -> None:
        _check_names(parameters, values)
        self.buffers: dict[str, GuardedBuffer] = {}
        dimensions: dict[str, int] = {}
        shared: dict[int, GuardedBuffer] = {}  # tensors at one address stay one buffer
        for parameter in parameters:
            if parameter.shape is not None:
                tensor = _check_tensor(parameter, values[parameter.name], dimensions)
                self.buffers[parameter.name] = shared.setdefault(tensor.data_ptr() or id(tensor), GuardedBuffer(tensor))
        self.c_arguments: list[Any] = [self._c_argument(p, values, dimensions) for p in parameters]

    def _c_argument(self, parameter: Parameter, values: Mapping[str, Any], dimensions: Mapping[str, int]) -> Any:
        if parameter.is_tensor:
            return ctypes.c_void_p(self.buffers[parameter.name].address)
        known, given = dimensions.get(parameter.name), values.get(parameter.name)
        if known is not None and given is not None and known != given:
            raise _wrong(f"dimension {parameter.name} is {known} in the tensors, but {given} was given")
        value = given if known is None else known
        if value is None:
            raise _wrong(f"no value for {parameter.name} ({parameter.c_type})")
        scalar = _SCALARS.get(parameter.c_type)
        if scalar is None:
            raise _wrong(f"{parameter.name}: the emulator cannot pass a {parameter.c_type} by value")
        number = float if scalar in (ctypes.c_float, ctypes.c_double) else int
        if not isinstance(value, (int, float)) or number(value) != value:
            raise _wrong(f"{parameter.name} takes a number of type {parameter.c_type}, got {value!r}")
        return scalar(number(value))

    def finish(self, kernel: str) -> None:
        """Copies results back; raises QlagenError E-EMU-OUT-OF-BOUNDS when bytes around a tensor changed."""
        for buffer in self.buffers.values():
            buffer.copy_back()
        touched = [name for name, buffer in self.buffers.items() if not buffer.is_intact()]
        if touched:
            raise QlagenError("E-EMU-OUT-OF-BOUNDS", f"kernel {kernel!r} wrote outside {', '.join(touched)}")


def _check_names(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> None:
    names = [p.name for p in parameters]
    for name in values:
        if name not in names:
            allowed = f"the kernel takes: {', '.join(names)}"
            raise _wrong(f"unknown argument {name!r}", notes=(allowed,), hints=did_you_mean(name, names))
    missing = [p.name for p in parameters if p.is_tensor and p.name not in values]
    if missing:
        raise _wrong(f"no tensor for {', '.join(missing)}")


def _check_tensor(parameter: Parameter, value: Any, dimensions: dict[str, int]) -> Tensor:
    """The tensor, when its device, dtype and shape fit; binds the dynamic dimensions it shows."""
    wanted = parameter.shape or ()
    if not hasattr(value, "data_ptr"):
        raise _wrong(f"{parameter.name} takes a tensor, got {type(value).__name__}")
    tensor: Tensor = value
    if str(tensor.device) != "cpu" or not tensor.is_contiguous():
        raise _wrong(f"{parameter.name}: a contiguous CPU tensor is needed")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != parameter.dtype:
        raise _wrong(f"{parameter.name} has dtype {dtype}, the kernel takes {parameter.dtype}")
    shape = tuple(tensor.shape)
    text = f"{parameter.name} has shape {shape}, the kernel takes ({', '.join(map(str, wanted))})"
    if len(shape) != len(wanted):
        raise _wrong(text)
    for got, dimension in zip(shape, wanted, strict=True):
        if isinstance(dimension, int):
            fits = got == dimension
        else:
            fits = not dimension.isidentifier() or dimensions.setdefault(dimension, got) == got
        if not fits:
            bound = f" with {dimension} = {dimensions[dimension]}" if isinstance(dimension, str) else ""
            raise _wrong(text + bound)
    return tensor


def _wrong(message: str, notes: Sequence[str] = (), hints: Sequence[str] = ()) -> QlagenError:
    return QlagenError("E-EMU-ARGUMENT", message, notes=notes, hints=hints)
