"""One primitive at a time, from CUDA text; and what each refuses."""

from __future__ import annotations

import pytest
import torch

from qlagen.errors import QlagenError
from qlagen.verify.emulator import STANDARD_MODES, EmulatedKernel, Mode

from .cuda_text import kernel_from_text

MODES = (*STANDARD_MODES, Mode(seed=9))


def failure(kernel: EmulatedKernel, **arguments: torch.Tensor) -> QlagenError:
    with pytest.raises(QlagenError) as caught:
        kernel(**arguments)
    return caught.value


def test_shuffles_and_votes() -> None:
    body = """
      int lane = tx % 32;
      out[0 * 64 + tx] = __shfl_sync(0xffffffffu, tx, 5);
      out[1 * 64 + tx] = __shfl_sync(0xffffffffu, tx, 9, 8);
      out[2 * 64 + tx] = __shfl_up_sync(0xffffffffu, tx, 3);
      out[3 * 64 + tx] = tl::shfl_down_sync(0xffffffffu, tx, 30);
      out[4 * 64 + tx] = __shfl_xor_sync(0xffffffffu, tx, 6, 8);
      out[5 * 64 + tx] = int(__ballot_sync(0xffffffffu, lane % 3 == 0));
      out[6 * 64 + tx] = __any_sync(0xffffffffu, tx == 40) + 2 * __all_sync(0xffffffffu, tx >= 32);
      out[7 * 64 + tx] = tl::tl_shuffle_elect<32>() + 2 * tl::tl_shuffle_elect<64>() + 4 * tl::tl_shuffle_elect<0>();
      if (lane < 16) out[8 * 64 + tx] = __shfl_xor_sync(0xffffu, tx, 1); else out[8 * 64 + tx] = -1;
      out[9 * 64 + tx] = int(float(tl::shfl_xor_sync(0xffffffffu, bfloat16_t(float(lane)), 1)));
    """
    kernel = kernel_from_text("shuffles", body, {"out": "int32"}, threads=64)
    tx = torch.arange(64, dtype=torch.int32)
    lane, first = tx % 32, tx - tx % 32
    expected = torch.stack(
        [
            first + 5,
            tx // 8 * 8 + 1,
            torch.where(lane < 3, tx, tx - 3),
            torch.where(lane > 1, tx, tx + 30),
            tx ^ 6,
            torch.full_like(tx, sum(1 << i for i in range(0, 32, 3)) - (1 << 32 if 31 % 3 == 0 else 0)),
            torch.where(tx < 32, 0, 3),
            (lane == 0) * 1 + (tx == 0) * 6,
            torch.where(lane < 16, tx ^ 1, -1),
            lane ^ 1,
        ]
    ).to(torch.int32)
    for mode in MODES:
        out = torch.zeros(640, dtype=torch.int32)
        kernel(out=out, mode=mode)
        assert torch.equal(out.view(10, 64), expected)


def test_named_and_block_barriers() -> None:
    """Two warps hand a value over through shared memory, by bar.arrive and bar.sync, then all meet and count."""
    body = """
      int* box = (int*)tile;
      for (int i = 0; i < 5; ++i) {
        if (tx < 32) {
          box[tx] = 100 * i + tx;
          tl::__named_barrier_arrive(3, 64);
          tl::__sync_thread_partial(4, 64);
        } else {
          tl::__sync_thread_partial(3, 64);
          out[i * 32 + tx - 32] = box[63 - tx];
          tl::__named_barrier_arrive(4, 64);
        }
      }
      out[160 + tx] = __syncthreads_count(tx % 3 == 0);
      out[160 + tx] += 100 * __syncthreads_or(tx == 7) + 1000 * __syncthreads_and(tx < 63);
    """
    kernel = kernel_from_text("named_barriers", body, {"out": "int32"}, threads=64)
    for mode in MODES:
        out = torch.zeros(224, dtype=torch.int32)
        kernel(out=out, mode=mode)
        expected = torch.stack([100 * i + 31 - torch.arange(32) for i in range(5)]).flatten().int()
        assert torch.equal(out[:160], expected)
        assert (out[160:] == 122).all()


def test_atomics_and_polling() -> None:
    body = """
      AtomicAdd(&sum[0], 1.5f);
      AtomicAddx2(&sum[2], make_float2(1.0f, 2.0f));
      AtomicMax(&flag[1], tx);
      if (tx == 63) AtomicStore(&flag[0], 1, 0);
      while (AtomicLoad(&flag[0], 0) == 0) {}
      flag[2 + tx] = AtomicAddRet(&flag[0], 1) > 0;
    """
    kernel = kernel_from_text("atomics", body, {"sum": "float32", "flag": "int32"}, threads=64)
    for mode in MODES:
        total, flag = torch.zeros(4), torch.zeros(66, dtype=torch.int32)
        kernel(sum=total, flag=flag, mode=mode)
        assert total.tolist() == [96.0, 0.0, 64.0, 128.0]
        assert flag[:2].tolist() == [65, 63]
        assert (flag[2:] == 1).all()


def test_polling_for_ever_is_a_deadlock() -> None:
    kernel = kernel_from_text("polling", "while (AtomicLoad(&flag[0], 0) == 0) {}", {"flag": "int32"})
    error = failure(kernel, flag=torch.zeros(1, dtype=torch.int32))
    assert error.code == "E-EMU-DEADLOCK"
    assert "poll memory that nothing changes" in error.message


def test_polling_a_barrier_lets_late_loads_land() -> None:
    body = """
      if (tx == 0) { barrier[0].init(1); barrier[0].arrive_and_expect_tx(128); tl::tma_load(tile, x, barrier[0], 128); }
      __syncwarp();
      while (!barrier[0].try_wait(0)) {}
      out[tx] = ((float*)tile)[tx];
    """
    kernel = kernel_from_text("try_wait", body, {"x": "float32", "out": "float32"})
    x, out = torch.randn(32), torch.zeros(32)
    kernel.run_in_modes({"x": x, "out": out})
    assert torch.equal(out, x)


ASYNC_COPIES = """
  half_t* box = (half_t*)tile;
  tl::cp_async_gs<16>(box + tx * 8, x + tx * 8);
  tl::cp_async_commit();
  tl::cp_async_gs_conditional<16>(box + 256 + tx * 8, x + 256 + tx * 8, tx < 20);
  tl::cp_async_commit();
  tl::cp_async_wait<WAIT>();
  __syncthreads();
  for (int i = 0; i < 16; ++i) out[tx * 16 + i] = box[tx * 16 + i];
  tl::cp_async_wait<0>();
"""


def test_async_copies() -> None:
    x = torch.randn(512).half()
    kernel = kernel_from_text("async_copies", ASYNC_COPIES.replace("WAIT", "0"), {"x": "float16", "out": "float16"})
    early = kernel_from_text("async_early", ASYNC_COPIES.replace("WAIT", "1"), {"x": "float16", "out": "float16"})
    expected = torch.cat([x[:416], torch.zeros(96).half()])
    for mode in MODES:
        out = torch.zeros(512).half()
        kernel(x=x, out=out, mode=mode)
        assert torch.equal(out, expected)
    out = torch.zeros(512).half()
    early(x=x, out=out, mode=Mode(late=True))  # second groups may still be under way: shared memory is NaN
    assert torch.equal(out[:256], x[:256])
    assert out[256:].isnan().any()


def test_bulk_copies() -> None:
    """cp.async.bulk in, doubled, out again, and added to a second result."""
    body = """
      float* box = (float*)tile;
      if (tx == 0) { barrier[1].init(1); barrier[1].arrive_and_expect_tx(256); }
      __syncthreads();
      if (tx == 0) tl::tma_load(box, x, barrier[1], 256);
      barrier[1].wait(0);
      box[tx] *= 2.0f;
      box[tx + 32] *= 2.0f;
      tl::fence_proxy_async();
      __syncthreads();
      if (tx == 0) {
        tl::tma_store(out, box, 256);
        tl::tma_store_add(box, sum, 256);
        tl::tma_store_arrive();
        tl::tma_store_wait<0>();
      }
    """
    kernel = kernel_from_text("bulk_copies", body, {"x": "float32", "out": "float32", "sum": "float32"})
    x = torch.randn(64)
    out, total = torch.zeros(64), torch.ones(64)
    kernel.run_in_modes({"x": x, "out": out, "sum": total})
    assert torch.equal(out, 2 * x)
    assert torch.equal(total, 1 + 2 * x)


def test_register_budget() -> None:
    """512 threads start with 128 registers each: 208, 208, 72 and 24 fit, three times 240 and 24 do not."""
    body = """
      if (tx < 128) tl::warpgroup_reg_alloc<A>();
      else if (tx < 256) tl::warpgroup_reg_alloc<A>();
      else if (tx < 384) tl::warpgroup_reg_KIND<B>();
      else tl::warpgroup_reg_dealloc<24>();
      out[tx] = 1;
    """
    fits = body.replace("A>", "208>").replace("KIND<B", "dealloc<72")
    for mode in MODES:
        out = torch.zeros(512, dtype=torch.int32)
        kernel_from_text("registers", fits, {"out": "int32"}, threads=512)(out=out, mode=mode)
        assert out.sum() == 512
    too_many = body.replace("A>", "240>").replace("KIND<B", "alloc<240")
    error = failure(kernel_from_text("too_many", too_many, {"out": "int32"}, threads=512), out=out)
    assert error.code == "E-EMU-DEADLOCK"
    assert any("setmaxnreg.inc 240: " in note for note in error.notes)


REFUSALS = {
    "DIVERGED": (
        "if (tx < 16) __syncwarp(); else __shfl_sync(0xffffffffu, tx, 0);",
        "while other lanes of the warp are in",
    ),
    "SHUFFLE": ("if (tx < 16) __shfl_sync(0xffffu, tx, 20);", "reads lane 20, which is not in mask 0xffff"),
    "BARRIER-COUNT": ("tl::__sync_thread_partial(2, 48);", "named barrier 2 for 48 threads"),
    "UNINITIALISED": ("barrier[2].arrive();", "mbarrier barrier[2] is used before it is initialised"),
    "SHARED-BOUNDS": (
        "uint32_t r[4] = {}; tl::ptx_ldmatrix_x4((char*)tile + 4000 + 16 * tx, r);",
        "the block has 4096",
    ),
    "MISALIGNED": (
        "uint32_t r[4]; tl::ptx_ldmatrix_x4((char*)tile + 8, r);",
        "shared byte 8 (tile + 8) is not a multiple of 16",
    ),
    "DEADLOCK": ("if (tx != 3) tl::tl_shuffle_elect<32>();", "no thread can go on"),
    "REGISTERS": ("tl::warpgroup_reg_dealloc<20>();", "setmaxnreg 20"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals(kind: str) -> None:
    body, text = REFUSALS[kind]
    error = failure(kernel_from_text("refusal", body, {"out": "int32"}), out=torch.zeros(1, dtype=torch.int32))
    assert error.code == f"E-EMU-{kind}"
    assert text in error.message


def test_writes_outside_a_tensor_are_found() -> None:
    kernel = kernel_from_text("outside", "out[tx] = 1;", {"out": "int32"})
    error = failure(kernel, out=torch.zeros(31, dtype=torch.int32))
    assert (error.code, error.message) == ("E-EMU-OUT-OF-BOUNDS", "kernel 'outside' wrote outside out")


def test_shared_memory_starts_as_nan_in_every_block() -> None:
    body = "out[blockIdx.x * 32 + tx] = ((bfloat16_t*)tile)[tx]; ((bfloat16_t*)tile)[tx] = bfloat16_t(1.0f);"
    out = torch.zeros(96).bfloat16()
    kernel_from_text("poison", body, {"out": "bfloat16"}, grid=3)(out=out)
    assert out.isnan().all()


def test_unmodelled_names_are_reported() -> None:
    with pytest.raises(QlagenError) as caught:
        kernel_from_text("cluster", "tl::cluster_sync();", {"out": "int32"})
    assert caught.value.code == "E-EMU-UNMODELLED"
    assert "uses tl::cluster_sync, which the emulator does not model" in caught.value.message
    with pytest.raises(QlagenError, match="inline PTX"):
        kernel_from_text("ptx", 'asm volatile("griddepcontrol.wait;");', {"out": "int32"})
