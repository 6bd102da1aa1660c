"""Rewrites generated CUDA so that a C++ compiler takes it: only shared-memory declarations and includes change."""

from __future__ import annotations

import re

from qlagen.errors import QlagenError

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]*>[ \t]*$", re.MULTILINE)
_DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(?P<type>[\w ]+?) (?P<name>\w+)\[\];")
_STATIC_SHARED = re.compile(
    r"__shared__ (?:__align__\((?P<alignment>\d+)\) )?(?P<type>[\w ]+?) (?P<name>\w+)\[(?P<extent>\d+)\];"
)
_EXPORT = re.compile(r"^#define TL_EXPORT[ \t]*$", re.MULTILINE)
_BLOCKS = re.compile(r"__launch_bounds__\(\s*\d+\s*,\s*(?P<blocks>\d+)\s*\)")
_STATIC_ALIGNMENT = 16


def emulated_source(cuda: str) -> str:
    """The C++ source for `cuda`, TileLang's wrapped CUDA: it includes the emulator's `device.h` and nothing else.

    The emulator is told how many blocks per multiprocessor the launch bounds ask for (of several kernels the fewest).

    Raises QlagenError E-EMU-UNMODELLED for shared-memory declarations of another form.
    """
    blocks = min((int(found["blocks"]) for found in _BLOCKS.finditer(cuda)), default=1)
    text = _INCLUDE.sub("", cuda)
    text = _DYNAMIC_SHARED.sub(r"\g<type>* \g<name> = reinterpret_cast<\g<type>*>(emu::shared_memory);", text)
    text = _STATIC_SHARED.sub(_static_shared, text)
    text = _EXPORT.sub('#define TL_EXPORT __attribute__((visibility("default")))', text)
    if "__shared__" in text:
        line = next(line.strip() for line in text.splitlines() if "__shared__" in line)
        raise QlagenError("E-EMU-UNMODELLED", f"the emulator does not know this shared-memory declaration: {line}")
    return f'#include "device.h"\n{text}\nconst int emu::blocks_at_once = {blocks};\n'


def _static_shared(match: re.Match[str]) -> str:
    name, array = match["name"], f"{match['type']}[{match['extent']}]"
    alignment = max(int(match["alignment"] or 0), _STATIC_ALIGNMENT)
    label = name.removesuffix("_mem")  # TileLang adds the suffix to the names of barriers
    return (
        f'static const uint32_t {name}_offset = emu::reserve_static_shared("{label}", sizeof({array}), {alignment}); '
        f"auto& {name} = emu::static_shared<{array}>({name}_offset);"
    )
