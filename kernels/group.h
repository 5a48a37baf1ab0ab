// Products of four simdgroups together (CUDA: wgmma of sm_90, in stage.cuh; Metal: below). Operands are panels in threadgroup
// memory, aligned to 1024 bytes: rows of LEN = 64 elements of 16 bits (CUDA), whose pieces of 16 bytes lie where group_at says.
//   group_base(p)    the first place from p on where a panel may start, less than 1024 bytes on
//   group_at<LEN>(r, c)   where element c (a multiple of 8) of row r lies in a panel
//   group_mma<K, KA, KB, PANEL>(acc, a, b, quarter)   acc += A (64 x K) * B (K x N); acc: tile_mma<T, 16, N> of each simdgroup,
//                    rows 16 * quarter.. KA: a has 64 rows [m][k], else K rows [k][m]. KB: b has N rows [n][k], else N / 64 panels
//                    of K rows [k][n], PANEL elements apart. K = 64 on CUDA
//   group_held<T, K> 64 x K of 16 bits in registers, each simdgroup its 16 rows; .load(a, quarter) from K / 64 panels of 64 rows
//   group_mma_held<PANEL>(acc, held, b)   acc (16 x N) += held * B: K / 64 panels of N rows [n][k], PANEL elements apart
//   group_apply<PANEL>(acc, p, v, ps)   acc (16 x D) += p (tile_mma<T, 16, K>, rounded to T) * V: D / 64 panels of K rows [k][n];
//                    ps: threadgroup memory of this simdgroup, 16 x K, where GROUP_MEMORY
//   group_turned<LD, WIDE>(to, acc, row, first)   to[c * LD + row + r] = element (r, first + c) of acc for c < WIDE, in threadgroup
//                    memory
//   group_fence()    after a copy has landed and before the barrier: products may read it
//   group_start(acc), group_close(), group_wait<N>(acc)   before the first product of a group, after its last, and until at most
//                    N younger groups run. With N = 0 acc may be read.
#ifndef MLXSPARSE_GROUP
#define MLXSPARSE_GROUP
#ifndef STAGE_CUDA
#define GROUP_MEMORY 1
template <typename T> METAL_FUNC threadgroup T* group_base(threadgroup T* p) { return p; }
template <int LEN> METAL_FUNC int group_at(int r, int c) { return r * LEN + c; }
template <int K, bool KA, bool KB, int PANEL, typename T, int N>
METAL_FUNC void group_mma(thread tile_mma<T, 16, N, 0>& acc, const threadgroup T* a, const threadgroup T* b, int quarter) {
  for (int k = 0; k < K; k += 8) {
    simdgroup_matrix<T, 8, 8> fa[2], fb;
    TILE_UNROLL
    for (int i = 0; i < 2; i++) {
      int m = quarter * 16 + i * 8;
      if (KA) simdgroup_load(fa[i], a + m * K + k, K);
      else simdgroup_load(fa[i], a + k * 64 + m, 64, ulong2(0), true);
    }
    TILE_UNROLL
    for (int j = 0; j < N / 8; j++) {
      if (KB) simdgroup_load(fb, b + j * 8 * K + k, K, ulong2(0), true);
      else simdgroup_load(fb, b + j / 8 * PANEL + k * 64 + j % 8 * 8, 64);
      TILE_UNROLL
      for (int i = 0; i < 2; i++) simdgroup_multiply_accumulate(acc.c[i * (N / 8) + j], fa[i], fb, acc.c[i * (N / 8) + j]);
    }
  }
}
template <typename T, int K> struct group_held {
  simdgroup_matrix<T, 8, 8> f[K / 8][2];
  METAL_FUNC void load(const threadgroup T* a, int quarter) {
    TILE_UNROLL
    for (int k = 0; k < K / 8; k++) {
      TILE_UNROLL
      for (int i = 0; i < 2; i++) simdgroup_load(f[k][i], a + k / 8 * 64 * 64 + (quarter * 16 + i * 8) * 64 + k % 8 * 8, 64);
    }
  }
};
template <int PANEL, typename T, int N, int K>
METAL_FUNC void group_mma_held(thread tile_mma<T, 16, N, 0>& acc, thread group_held<T, K>& a, const threadgroup T* b) {
  TILE_UNROLL
  for (int k = 0; k < K / 8; k++) {
    TILE_UNROLL
    for (int j = 0; j < N / 8; j++) {
      simdgroup_matrix<T, 8, 8> fb;
      simdgroup_load(fb, b + k / 8 * PANEL + j * 8 * 64 + k % 8 * 8, 64, ulong2(0), true);
      TILE_UNROLL
      for (int i = 0; i < 2; i++) simdgroup_multiply_accumulate(acc.c[i * (N / 8) + j], a.f[k][i], fb, acc.c[i * (N / 8) + j]);
    }
  }
}
template <int PANEL, typename T, int D, int K>
METAL_FUNC void group_apply(thread tile_mma<T, 16, D, 0>& acc, thread tile_mma<T, 16, K, 0>& p, const threadgroup T* v,
                            threadgroup T* ps) {
  tile_keep<K>(ps, p);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  group_mma<K, true, false, PANEL>(acc, (const threadgroup T*)ps, v, 0);
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
template <int LD, int WIDE, typename T, int N>
METAL_FUNC void group_turned(threadgroup T* to, thread tile_mma<T, 16, N, 0>& acc, int row, int first) {
  TILE_UNROLL
  for (int i = 0; i < acc.ROWS; i++) {
    TILE_UNROLL
    for (int j = 0; j < WIDE / 8; j++) {
      to[acc.col(j) * LD + row + acc.row(i)] = T(acc.get(i, first / 8 + j, 0));
      to[(acc.col(j) + 1) * LD + row + acc.row(i)] = T(acc.get(i, first / 8 + j, 1));
    }
  }
}
METAL_FUNC void group_fence() {}
template <typename T, int N> METAL_FUNC void group_start(thread tile_mma<T, 16, N, 0>&) {}
METAL_FUNC void group_close() {}
template <int W, typename T, int N> METAL_FUNC void group_wait(thread tile_mma<T, 16, N, 0>&) {}
#endif
#endif
