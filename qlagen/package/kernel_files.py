"""What the library must know of an emitted kernel file, read from its text: importing it would need TileLang."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from qlagen.errors import QlagenError


@dataclass(frozen=True)
class KernelFile:
    """An emitted kernel and its exported constants."""

    name: str
    stem: str
    """File name without its suffix."""
    text: str
    tensors: tuple[str, ...]
    scalars: tuple[tuple[str, str], ...]
    dynamic: tuple[str, ...]
    kind: str
    value_tile: int
    ctas_per_sm: int
    item_heads: tuple[int, int]
    """Of a chunk-parallel kernel: key heads of an item, and value heads of each."""
    data_types: tuple[str, ...]


def read_kernel_file(text: str, operator: str) -> KernelFile:
    """The exported constants of a kernel file. Raises E-KERNEL when one is missing or no literal."""
    values = _constants(text)
    name = str(_constant(values, "NAME", "a kernel file"))
    stem = name.removeprefix(f"{operator}_")
    return KernelFile(
        name=name,
        stem=stem,
        text=text,
        tensors=tuple(map(str, _constant(values, "TENSORS", name))),
        scalars=tuple((str(key), str(kind)) for key, kind in _constant(values, "SCALARS", name)),
        dynamic=tuple(map(str, _constant(values, "DYNAMIC", name))),
        kind=str(_constant(values, "KIND", name)),
        value_tile=int(_constant(values, "VALUE_TILE", name)),
        ctas_per_sm=int(_constant(values, "CTAS_PER_SM", name)),
        item_heads=values.get("ITEM_HEADS", (1, 1)),
        data_types=tuple(map(str, _constant(values, "DATA_TYPES", name))),
    )


def _constants(text: str) -> dict[str, Any]:
    """Module-level assignments of literals."""
    values: dict[str, Any] = {}
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
            try:
                values[target.id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return values


def _constant(values: dict[str, Any], key: str, kernel: str) -> Any:
    if key not in values:
        message = f"{kernel} does not export {key} as a literal"
        raise QlagenError("E-KERNEL", message, hints=["this is a fault of the kernel templates"])
    return values[key]
