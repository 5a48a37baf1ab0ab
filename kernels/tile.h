// Matrix tiles of one simdgroup (a CUDA warp), and copies from device to threadgroup memory. One interface, two bodies:
// simdgroup_matrix on Metal (below), mma.sync, ldmatrix and cp.async on CUDA (tile.cuh, which follows the prelude and
// defines TILE_CUDA).
//
//   tile_ld<T>(cols, k_rows)      padded row length of a matrix in threadgroup memory (16-byte rows, no bank conflicts);
//                                 k_rows: rows run along the reduction axis
//   tile_mma<T, M, N, EXACT>      fp32 accumulator of M x N, M % 16 == 0, N % 16 == 0; all 32 lanes call every method together
//     .clear(lane)                lane = thread_index_in_simdgroup
//     .mma<K, LDA, TA, LDB, TB>(a, b)   acc += A (M x K) * B (K x N), K % 16 == 0, both in threadgroup memory
//                                 A is stored [m][k] (TA = false) or [k][m] (TA = true)
//                                 B is stored [k][n] (TB = false) or [n][k] (TB = true)
//     .ROWS, .COLS, .row(i), .col(j), .get(i, j, e)   the lane holds ROWS x COLS pairs: elements (row(i), col(j) + e), e = 0, 1
//   tile_copy<T, COUNT, REUSE>    COUNT copies of 16 bytes in flight per thread
//                                 REUSE: other threadgroups of this core read the same lines soon (CUDA: kept in L1)
//     .fetch(i, dst, src, ok)     starts copy i; writes zeros where !ok (src is then not read)
//     .land()                     finishes this thread's copies on Metal (after the multiplication); CUDA's land by themselves
//   tile_commit(), tile_wait<N>() close a group of copies; wait until at most N younger groups are open. A
//                                 threadgroup_barrier must follow tile_wait before other threads' data is read.
//   tile_aligned(p)               16-byte copies from p on are allowed: a view may start anywhere in its buffer
//   tile_put2(p, x, y, aligned)   two neighbouring outputs; aligned: p is a multiple of two elements
//   tile_add2(p, x, y)            two neighbouring floats of device memory grow by x and y, atomically; p is a multiple of 8 bytes
//   tile_keep2(p, x, y)           two neighbours in threadgroup memory, aligned
//   tile_keep<LD>(to, t)          to[r * LD + c] = element (r, c) of t, in threadgroup memory
//   tile_row16(to, from, ok)      16 bytes from threadgroup to device memory, zeros where !ok
// EXACT (fp32 on CUDA; Metal is always fp32): 0 one TF32 product (10-bit mantissa), 1 three TF32 products (near fp32),
// 2 fp32 multiply-adds.
#ifndef TILE_CUDA
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
template <typename T> constexpr int tile_ld(int cols, bool k_rows) {
  return cols + (sizeof(T) == 4 && k_rows ? 8 : 16 / int(sizeof(T)));
}

template <typename T, int M, int N, int EXACT = 1> struct tile_mma {
  static constexpr constant int MI = M / 8, NI = N / 8, MN = MI * NI, ROWS = MI, COLS = NI;
  simdgroup_matrix<float, 8, 8> c[MN];
  int fm, fn; // where this lane's two elements lie in an 8x8 matrix (the map that MLX's own kernels rely on)

  tile_mma() thread {} // the matrices have no other
  METAL_FUNC void clear(uint lane) thread {
    fm = int((lane / 4) & 4) + int((lane / 2) % 4);
    fn = int((lane / 4) & 2) * 2 + int(lane % 2) * 2;
    TILE_UNROLL
    for (int i = 0; i < MN; i++) c[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  template <int K, int LDA, bool TA, int LDB, bool TB>
  METAL_FUNC void mma(const threadgroup T* a, const threadgroup T* b) thread {
    TILE_UNROLL
    for (int k = 0; k < K; k += 8) {
      simdgroup_matrix<T, 8, 8> fa[MI];
      simdgroup_matrix<T, 8, 8> fb[NI];
      TILE_UNROLL
      for (int i = 0; i < MI; i++) {
        if (TA) simdgroup_load(fa[i], a + k * LDA + i * 8, LDA, ulong2(0), true);
        else simdgroup_load(fa[i], a + i * 8 * LDA + k, LDA);
      }
      TILE_UNROLL
      for (int j = 0; j < NI; j++) {
        if (TB) simdgroup_load(fb[j], b + j * 8 * LDB + k, LDB, ulong2(0), true);
        else simdgroup_load(fb[j], b + k * LDB + j * 8, LDB);
      }
      TILE_UNROLL
      for (int i = 0; i < MI; i++) {
        TILE_UNROLL
        for (int j = 0; j < NI; j++) simdgroup_multiply_accumulate(c[i * NI + j], fa[i], fb[j], c[i * NI + j]);
      }
    }
  }

  METAL_FUNC int row(int i) const thread { return i * 8 + fm; }
  METAL_FUNC int col(int j) const thread { return j * 8 + fn; }
  METAL_FUNC float get(int i, int j, int e) thread { return c[i * NI + j].thread_elements()[e]; }
};

// Loads wait in registers while the simdgroup multiplies.
template <typename T, int COUNT, bool REUSE = false> struct tile_copy {
  uint4 v[COUNT];
  threadgroup T* to[COUNT];
  METAL_FUNC void fetch(int i, threadgroup T* dst, const device T* src, bool ok) thread {
    to[i] = dst;
    v[i] = ok ? *(const device uint4*)src : uint4(0);
  }
  METAL_FUNC void land() thread {
    TILE_UNROLL
    for (int i = 0; i < COUNT; i++) *(threadgroup uint4*)to[i] = v[i];
  }
};
METAL_FUNC void tile_commit() {}
template <int N> METAL_FUNC void tile_wait() {}
template <typename T> METAL_FUNC bool tile_aligned(const device T* p) { return (size_t(p) & 15) == 0; }
template <typename T> METAL_FUNC void tile_put2(device T* p, float x, float y, bool aligned) {
  p[0] = T(x);
  p[1] = T(y);
}
METAL_FUNC void tile_add2(device float* p, float x, float y) {
  atomic_fetch_add_explicit((device atomic_float*)p, x, memory_order_relaxed);
  atomic_fetch_add_explicit((device atomic_float*)p + 1, y, memory_order_relaxed);
}
template <typename T> METAL_FUNC void tile_keep2(threadgroup T* p, float x, float y) {
  p[0] = T(x);
  p[1] = T(y);
}
template <typename T> METAL_FUNC void tile_row16(device T* to, const threadgroup T* from, bool ok) {
  *(device uint4*)to = ok ? *(const threadgroup uint4*)from : uint4(0);
}
#endif
template <int LD, typename T, int M, int N, int E>
METAL_FUNC void tile_keep(threadgroup T* to, thread tile_mma<T, M, N, E>& t) {
  TILE_UNROLL
  for (int i = 0; i < t.ROWS; i++) {
    TILE_UNROLL
    for (int j = 0; j < t.COLS; j++) tile_keep2(to + t.row(i) * LD + t.col(j), t.get(i, j, 0), t.get(i, j, 1));
  }
}
