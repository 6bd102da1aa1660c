"""Small TileLang kernels, each made of the primitives one test is about."""

import tilelang
import tilelang.language as T


def accumulator_transposed(rows, columns):
    """Fragment (columns, rows) in the registers of a wgmma accumulator (rows, columns) of one warpgroup."""
    return tilelang.layout.Fragment(
        (columns, rows),
        forward_fn=lambda j, i: (
            (i // 16) * 32 + (i % 8) * 4 + (j % 8) // 2,
            (j // 8) * 4 + ((i % 16) // 8) * 2 + (j % 2),
        ),
    )


def product(n, k, dtype, transpose_a=False, transpose_b=False, a_in_registers=False):
    """out[64, n] = A B with one wgmma group; operands come by TMA and lie K-major or MN-major in shared memory."""
    a_shape = (k, 64) if transpose_a else (64, k)
    b_shape = (n, k) if transpose_b else (k, n)

    @T.prim_func
    def main(a: T.Tensor(a_shape, dtype), b: T.Tensor(b_shape, dtype), out: T.Tensor((64, n), "float32")):
        with T.Kernel(1, threads=160) as (_,):
            a_shared = T.alloc_shared(a_shape, dtype)
            b_shared = T.alloc_shared(b_shape, dtype)
            a_fragment = T.alloc_fragment(a_shape, dtype)
            sums = T.alloc_fragment((64, n), "float32")
            ready = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            if tx < 128:
                T.barrier_wait(ready, 0)
                if a_in_registers:
                    T.copy(a_shared, a_fragment)
                    T.wgmma_gemm(a_fragment, b_shared, sums, transpose_B=transpose_b, clear_accum=True)
                else:
                    T.wgmma_gemm(
                        a_shared, b_shared, sums, transpose_A=transpose_a, transpose_B=transpose_b, clear_accum=True
                    )
                T.wait_wgmma(0)
                for i, j in T.Parallel(64, n):
                    out[i, j] = sums[i, j]
            else:
                T.tma_copy(a, a_shared, barrier=ready)
                T.tma_copy(b, b_shared, barrier=ready)
                T.barrier_arrive(ready)

    return main


def warp_product(m, n, k, dtype):
    """out[m, n] = A B^T with mma.sync (m too small for wgmma), operands by ldmatrix."""

    @T.prim_func
    def main(a: T.Tensor((m, k), dtype), b: T.Tensor((n, k), dtype), out: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=128) as (_,):
            a_shared = T.alloc_shared((m, k), dtype)
            b_shared = T.alloc_shared((n, k), dtype)
            sums = T.alloc_fragment((m, n), "float32")
            T.copy(a, a_shared)
            T.copy(b, b_shared)
            T.gemm(a_shared, b_shared, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, out)

    return main


def ring(stages):
    """out[rows, 64] = 2 * sum over chunks of A_c B_c: a TMA producer, a wgmma consumer and a TMA store warp.

    The consumer waits for a chunk's group only after issuing the next, and hands the result over through shared
    memory. Rows beyond the tensor are read as zero and not stored.
    """
    tokens = T.dynamic("tokens")
    chunks = T.dynamic("chunks")

    @T.prim_func
    def main(
        a: T.Tensor((chunks, tokens, 64), "bfloat16"),
        b: T.Tensor((chunks, 64, 64), "bfloat16"),
        out: T.Tensor((tokens, 64), "bfloat16"),
        factor: T.float32,
    ):
        with T.Kernel(T.ceildiv(tokens, 64), threads=192) as (tile,):
            a_ring = T.alloc_shared((stages, 64, 64), "bfloat16")
            b_ring = T.alloc_shared((stages, 64, 64), "bfloat16")
            out_shared = T.alloc_shared((64, 64), "bfloat16")
            sums = T.alloc_fragment((64, 64), "float32")
            result = T.alloc_fragment((64, 64), "bfloat16")
            ready = T.alloc_barrier([32] * stages)
            free = T.alloc_barrier([4] * stages)
            out_ready = T.alloc_barrier(4)
            T.annotate_layout({out_shared: tilelang.layout.make_full_bank_swizzled_layout(out_shared)})
            tx = T.get_thread_binding()
            if tx < 128:
                T.clear(sums)
                for c in T.serial(chunks):
                    T.barrier_wait(ready[c % stages], (c // stages) % 2)
                    T.wgmma_gemm(a_ring[c % stages, :, :], b_ring[c % stages, :, :], sums)
                    T.wait_wgmma(0)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.barrier_arrive(free[c % stages])
                for i, j in T.Parallel(64, 64):
                    result[i, j] = sums[i, j] * factor
                T.copy(result, out_shared)
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.barrier_arrive(out_ready)
            elif tx < 160:
                for c in T.serial(chunks):
                    T.barrier_wait(free[c % stages], (c // stages + 1) % 2)
                    T.tma_copy(a[c, tile * 64 : tile * 64 + 64, :], a_ring[c % stages, :, :], barrier=ready[c % stages])
                    T.tma_copy(b[c, :, :], b_ring[c % stages, :, :], barrier=ready[c % stages])
                    T.barrier_arrive(ready[c % stages])
            else:
                T.barrier_wait(out_ready, 0)
                T.copy(out_shared, out[tile * 64 : tile * 64 + 64, :])

    return main


def transposed_copies():
    """out = A^T by stmatrix.trans from an accumulator layout; back = A by ldmatrix.trans of the same tile."""

    @T.prim_func
    def main(
        a: T.Tensor((64, 128), "bfloat16"), out: T.Tensor((128, 64), "bfloat16"), back: T.Tensor((64, 128), "bfloat16")
    ):
        with T.Kernel(1, threads=128) as (_,):
            a_fragment = T.alloc_fragment((64, 128), "float32")
            turned = T.alloc_fragment((128, 64), "bfloat16")
            again = T.alloc_fragment((128, 64), "bfloat16")
            out_shared = T.alloc_shared((128, 64), "bfloat16")
            T.annotate_layout(
                {
                    turned: accumulator_transposed(64, 128),
                    again: accumulator_transposed(64, 128),
                    out_shared: tilelang.layout.make_full_bank_swizzled_layout(out_shared),
                }
            )
            for i, j in T.Parallel(64, 128):
                a_fragment[i, j] = a[i, j]
            for i, j in T.Parallel(64, 128):
                turned[j, i] = a_fragment[i, j]
            T.copy(turned, out_shared)
            T.fence_proxy_async()
            T.sync_threads(1, 128)
            T.copy(out_shared, again)
            for i, j in T.Parallel(64, 128):
                back[i, j] = again[j, i]
            T.copy(out_shared, out)

    return main


def line_sums(rows, columns):
    """total[rows] by a reduction over threads, running[rows, columns] by a scan in shared memory, peak by a maximum."""

    @T.prim_func
    def main(
        x: T.Tensor((rows, columns), "float32"),
        total: T.Tensor((rows,), "float32"),
        peak: T.Tensor((rows,), "float32"),
        running: T.Tensor((rows, columns), "float32"),
    ):
        with T.Kernel(1, threads=128) as (_,):
            tile = T.alloc_shared((rows, columns), "float32")
            values = T.alloc_fragment((rows, columns), "float32")
            sums = T.alloc_fragment((rows,), "float32")
            T.copy(x, tile)
            T.copy(tile, values)
            T.reduce_sum(values, sums, dim=1)
            T.copy(sums, total)
            T.reduce_max(values, sums, dim=1)
            T.copy(sums, peak)
            T.cumsum(src=tile, dim=1)
            T.copy(tile, running)

    return main


def masked_copy():
    """out[tokens, heads, 32] = in, tile by tile: cp.async with zero fill, masked plain stores."""
    tokens = T.dynamic("tokens")
    heads = T.dynamic("heads")

    @T.prim_func
    def main(
        x: T.Tensor((tokens, heads, 32), "float16"), out: T.Tensor((tokens, heads, 32), "float16"), shift: T.int32
    ):
        with T.Kernel(T.ceildiv(tokens, 16), heads, threads=64) as (tile, head):
            tile_shared = T.alloc_shared((16, 32), "float16")
            T.async_copy(x[tile * 16 : tile * 16 + 16, head, :], tile_shared)
            T.ptx_wait_group(0)
            for i, j in T.Parallel(16, 32):
                if tile * 16 + i < tokens:
                    out[tile * 16 + i, head, j] = tile_shared[i, j] + T.cast(shift, "float16")

    return main
