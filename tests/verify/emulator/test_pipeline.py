"""A TMA ring with a producer, a consumer and a store warp: right in every mode, and every dropped piece is noticed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from qlagen.errors import QlagenError
from qlagen.verify.emulator import STANDARD_MODES, EmulatedKernel, LoweredKernel, Mode, build_emulated, lower_kernel

from .kernels import ring

STAGES, CHUNKS, TOKENS, FACTOR = 3, 7, 100, 0.5
SEEDED = tuple(Mode(late=True, seed=seed) for seed in range(4))
LAZY_SEEDED = tuple(Mode(lazy=True, late=True, seed=seed) for seed in range(4))


@pytest.fixture(scope="module")
def lowered() -> LoweredKernel:
    import tilelang

    # All synchronisation is written in the kernel; without TileLang's own barriers a dropped one has an effect.
    return lower_kernel(ring(STAGES), {tilelang.PassConfigKey.TL_DISABLE_THREAD_STORAGE_SYNC: True})


@pytest.fixture(scope="module")
def operands() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a": torch.randn(CHUNKS, TOKENS, 64).bfloat16(), "b": torch.randn(CHUNKS, 64, 64).bfloat16()}


def expected(operands: dict[str, torch.Tensor]) -> torch.Tensor:
    return (operands["a"].double() @ operands["b"].double()).sum(0) * FACTOR


def outcome(kernel: EmulatedKernel, operands: dict[str, torch.Tensor], mode: Mode) -> str:
    """What happens in a mode: `right`, `wrong`, or the kind of error."""
    out = torch.full((TOKENS, 64), float("nan")).bfloat16()
    try:
        kernel(**operands, out=out, factor=FACTOR, mode=mode)
    except QlagenError as error:
        return error.code.removeprefix("E-EMU-")
    reference = expected(operands)
    return "right" if (out.double() - reference).norm() < 4e-3 * reference.norm() else "wrong"


def mutated(lowered: LoweredKernel, old: str, new: str) -> EmulatedKernel:
    """The kernel with one piece of its text (a regular expression, found exactly once) replaced."""
    assert len(re.findall(old, lowered.device_source)) == 1
    return build_emulated(replace(lowered, source=re.sub(old, new, lowered.source)), "ring_mutated")


def test_every_mode_gives_the_same_right_result(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    """100 rows make a ragged last tile: rows outside are read as zero and not stored."""
    kernel = build_emulated(lowered, "ring")
    out = torch.full((TOKENS, 64), float("nan")).bfloat16()
    kernel.run_in_modes({**operands, "out": out, "factor": FACTOR})
    reference = expected(operands)
    assert (out.double() - reference).norm() < 4e-3 * reference.norm()
    assert len(STANDARD_MODES) >= 8


def test_chosen_blocks(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    out = torch.full((TOKENS, 64), float("nan")).bfloat16()
    build_emulated(lowered, "ring")(**operands, out=out, factor=FACTOR, blocks=[(1, 0, 0)])
    assert out[:64].isnan().all()
    assert torch.allclose(out[64:].double(), expected(operands)[64:], rtol=2e-2, atol=2e-1)


def test_empty_tensors_have_no_tensor_map(lowered: LoweredKernel) -> None:
    """As on the GPU: the driver refuses a map with an empty dimension, so the host must not launch."""
    kernel = build_emulated(lowered, "ring")
    empty = {"a": torch.zeros(0, 64, 64).bfloat16(), "b": torch.zeros(0, 64, 64).bfloat16()}
    with pytest.raises(QlagenError) as caught:
        kernel(**empty, out=torch.zeros(64, 64).bfloat16(), factor=1.0)
    assert caught.value.code == "E-EMU-TENSOR-MAP"
    assert "dimension 2 is 0: 1 to 2^32 are possible" in caught.value.message


def test_facts_of_the_launch(lowered: LoweredKernel) -> None:
    assert [(p.name, p.c_type, p.shape) for p in lowered.parameters] == [
        ("a", "bfloat16_t*", ("chunks", "tokens", 64)),
        ("b", "bfloat16_t*", ("chunks", 64, 64)),
        ("out", "bfloat16_t*", ("tokens", 64)),
        ("factor", "float", None),
        ("chunks", "int", None),
        ("tokens", "int", None),
    ]
    (launch,) = lowered.launches
    assert (launch.kernel, launch.threads, launch.grid[0]) == ("main_kernel", 192, "(tokens + 63) // 64")
    assert launch.dynamic_shared_bytes == 2 * STAGES * 64 * 64 * 2 + 64 * 64 * 2
    assert lowered.shared_buffers[0] == ("a_ring", 0)


MUTATIONS = {
    # name: (text, replacement, modes of which at least one must notice, what they may say)
    "no wait for the product": (r"tl::wait_wgmma<0>\(\);", "", (Mode(lazy=True),), {"wrong"}),
    "no ready wait": (r"ready\[\(c % 3\)\]\.wait\([^;]*\);", "", (Mode(late=True),), {"wrong", "DEADLOCK"}),
    "no free wait": (r"free\[\(c_1 % 3\)\]\.wait\([^;]*\);", "", SEEDED, {"wrong", "OVER-ARRIVAL", "DEADLOCK"}),
    "no result wait": (r"out_ready\[0\]\.wait\(0\);", "", (Mode(),), {"wrong"}),
    "early release": (
        r"(tl::wait_wgmma<0>\(\);)\s*(__syncwarp\(\);\s*if \(tl::tl_shuffle_elect<32>\(\)\) \{\s*free[^}]*\})",
        r"\2 \1",
        LAZY_SEEDED,
        {"wrong"},
    ),
    "early arrival of the producer": (
        r"(if \(tl::tl_shuffle_elect<32>\(\)\) \{\s*ready[^}]*\})\s*(ready\[\(c_1 % 3\)\]\.arrive\(\);)",
        r"\2 \1",
        SEEDED,
        {"wrong", "DEADLOCK", "IN-FLIGHT"},
    ),
    "no proxy fence": (r"tl::fence_proxy_async\(\);", "", (Mode(),), {"PROXY-FENCE"}),
    "no wait for the store": (r"tl::tma_store_wait<0, true>\(\);", "", (Mode(late=True),), {"IN-FLIGHT"}),
    "one arrival too many expected": (r"out_ready\[0\]\.init\(4\);", "out_ready[0].init(5);", (Mode(),), {"DEADLOCK"}),
    "too few arrivals expected": (
        r"ready\[0\]\.init\(32\);",
        "ready[0].init(31);",
        (Mode(late=True),),
        {"OVER-ARRIVAL"},
    ),
    "barrier not initialised": (r"free\[0\]\.init\(4\);", "", (Mode(),), {"UNINITIALISED"}),
    "accumulator not cleared": (r"\*\(float4\*\)\(sums \+ \(i \* 4\)\) = make_float4[^;]*;", "", (Mode(),), {"wrong"}),
    "wrong bytes": (
        r"(a_desc, ready.*\s*)(.*)expect_transaction\(8192\)",
        r"\1\2expect_transaction(8208)",
        (Mode(),),
        {"DEADLOCK"},
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_noticed(lowered: LoweredKernel, operands: dict[str, torch.Tensor], name: str) -> None:
    old, new, modes, allowed = MUTATIONS[name]
    kernel = mutated(lowered, old, new)
    outcomes = {outcome(kernel, operands, mode) for mode in modes}
    assert outcomes - {"right"}
    assert outcomes <= allowed | {"right"}


def test_only_adverse_orders_notice_some_mutations(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    """Why the modes exist: without them these two kernels look right."""
    for name in ("no wait for the product", "early release"):
        old, new, _, _ = MUTATIONS[name]
        assert outcome(mutated(lowered, old, new), operands, Mode()) == "right"


def test_orders_are_compared(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    old, new, _, _ = MUTATIONS["no wait for the product"]
    kernel = mutated(lowered, old, new)
    out = torch.zeros(TOKENS, 64).bfloat16()
    with pytest.raises(QlagenError, match="'ring_mutated': out differ between the modes eager and lazy") as caught:
        kernel.run_in_modes({**operands, "out": out, "factor": FACTOR})
    assert caught.value.code == "E-EMU-ORDER"


def test_deadlock_says_who_waits_for_what(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    old, new, _, _ = MUTATIONS["one arrival too many expected"]
    out = torch.zeros(TOKENS, 64).bfloat16()
    with pytest.raises(QlagenError) as caught:
        mutated(lowered, old, new)(**operands, out=out, factor=FACTOR)
    assert caught.value.code == "E-EMU-DEADLOCK"
    assert str(caught.value).splitlines() == [
        "error[E-EMU-DEADLOCK]: kernel 'ring_mutated', block (0, 0, 0), mode eager: no thread can go on",
        "  note: threads 160-191 wait for mbarrier out_ready[0], parity 0: 1 of 5 arrivals and 0 bytes are missing",
        "  hint: compare arrive counts and phases of the barriers named above with the arrivals in the kernel",
    ]


def test_proxy_fence_error_names_the_buffer(lowered: LoweredKernel, operands: dict[str, torch.Tensor]) -> None:
    kernel = mutated(lowered, MUTATIONS["no proxy fence"][0], "")
    out = torch.zeros(TOKENS, 64).bfloat16()
    with pytest.raises(QlagenError, match=r"TMA store by thread 160 reads shared byte \d+ \(out_shared \+ 0\)"):
        kernel(**operands, out=out, factor=FACTOR)
    kernel(**operands, out=out, factor=FACTOR, mode=Mode(fences="off"))
