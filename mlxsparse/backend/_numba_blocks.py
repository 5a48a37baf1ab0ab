"""Block-sparse times dense in registers, for backend/fast_blocks.py; imported only where numba is."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._numba_jit import njit

LANES, VECTORS, ROWS = 8, 3, 4  # twelve sums of eight: what AVX2 has registers for
WIDTH = LANES * VECTORS


@intrinsic
def _multiply(context: Any, s: Any, row_step: Any, k_step: Any, depth: Any, b: Any, c: Any) -> Any:
    """c (ROWS, WIDTH) += S (ROWS, depth) @ b (depth, WIDTH), float32, by address; steps of S in bytes."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        s, row_step, k_step, depth, b, c = args
        single, i64, i32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
        vector = ir.VectorType(single, LANES)
        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        none = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(i32, LANES), [0] * LANES)

        def load(at: Any, i: int) -> Any:
            value = builder.load(builder.gep(at, [i64(i)]))
            value.align = 4
            return value

        sums = builder.inttoptr(c, vector.as_pointer())
        before = builder.block
        loop, done = (builder.function.append_basic_block(name) for name in ("k", "done"))
        start = [load(sums, i) for i in range(ROWS * VECTORS)]
        builder.branch(loop)
        builder.position_at_end(loop)
        k, left, right = builder.phi(i64), builder.phi(i64), builder.phi(i64)
        held = [builder.phi(vector) for _ in start]
        row = builder.inttoptr(right, vector.as_pointer())
        terms = [load(row, j) for j in range(VECTORS)]
        new = []
        for r in range(ROWS):
            at = builder.add(left, builder.mul(row_step, i64(r)))
            one = builder.load(builder.inttoptr(at, single.as_pointer()))
            spread = builder.shuffle_vector(builder.insert_element(none, one, i32(0)), none, everywhere)
            new += [builder.call(fma, [spread, terms[j], held[r * VECTORS + j]]) for j in range(VECTORS)]
        steps = [(k, i64(0), i64(1)), (left, s, k_step), (right, b, i64(4 * WIDTH))]
        after = [builder.add(value, step) for value, _, step in steps]
        for phi, first, then in zip(
            (k, left, right, *held), (i64(0), s, b, *start), (*after, *new), strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed("<", after[0], depth), loop, done)
        builder.position_at_end(done)
        for i, value in enumerate(new):
            builder.store(value, builder.gep(sums, [i64(i)])).align = 4
        return target.get_dummy_value()

    return types.void(*[types.int64] * 6), generate




@njit(nogil=True, cache=True, error_model="numpy")
def times(
    values: int,
    turned: bool,
    ptr: np.ndarray,
    block: np.ndarray,
    other: np.ndarray,
    size: int,
    other_size: int,
    other_extent: int,
    panels: np.ndarray,
    out: np.ndarray,
) -> None:
    """out (rows, columns) = the lines of ptr (lines + 1,) times `panels` (panels, K, WIDTH).

    values: address of float32 blocks (size, other_size), or (other_size, size) where turned.
    """
    row_step, k_step = (4, 4 * size) if turned else (4 * other_size, 4)
    sums = np.empty((ROWS, WIDTH), np.float32)
    rows, columns = out.shape
    for line in range(len(ptr) - 1):
        for p in range(len(panels)):
            base = panels[p].ctypes.data
            wide = min(WIDTH, columns - p * WIDTH)
            for r in range(0, size, ROWS):
                top = line * size + r
                sums[:] = 0
                for e in range(ptr[line], ptr[line + 1]):
                    place = other[e] * other_size
                    depth = min(other_size, other_extent - place)
                    at = values + 4 * block[e] * size * other_size + r * row_step
                    right = base + 4 * place * WIDTH
                    _multiply(at, row_step, k_step, depth, right, sums.ctypes.data)  # type: ignore[call-arg]
                high = min(ROWS, rows - top)
                if out.strides[0] < out.strides[1]:
                    for j in range(wide):
                        for i in range(high):
                            out[top + i, p * WIDTH + j] = sums[i, j]
                else:
                    for i in range(high):
                        for j in range(wide):
                            out[top + i, p * WIDTH + j] = sums[i, j]


@njit(nogil=True, cache=True, error_model="numpy")
def pack(dense: np.ndarray, panels: np.ndarray) -> None:
    """panels (panels, K, WIDTH) = dense (K, columns), 0 past its columns."""
    depth, columns = dense.shape
    for p in range(len(panels)):
        wide = min(WIDTH, columns - p * WIDTH)
        if wide < WIDTH:
            panels[p] = 0
        if dense.strides[0] < dense.strides[1]:
            for k in range(0, depth, 16):
                for j in range(wide):
                    for i in range(k, min(k + 16, depth)):
                        panels[p, i, j] = dense[i, p * WIDTH + j]
        else:
            for k in range(depth):
                for j in range(wide):
                    panels[p, k, j] = dense[k, p * WIDTH + j]
