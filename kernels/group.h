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
// Copies of panels by the machine's copy engine (CUDA: TMA of sm_90, which one more simdgroup asks; Metal: all
// threads copy), for CLUSTER threadgroups that run together. STAGES buffers, each with two bars of bars[2 * STAGES]: its panels have
// landed; all have multiplied with them, so that it is free. Each bar is waited for with the phases 0, 1, 0, ...
//   PANEL_ROLES      2: the last simdgroup asks for copies, panel_role() 1, and does nothing else; 1: all have the role 0
//   panel_map<T>     matrices in device memory, aligned to 16 bytes, rows of a multiple of 8 elements; panel_matrix(made, map, p, items,
//                    rows, columns) describes them, in device memory map[32], through threadgroup memory made[32], both aligned to 128
//   panel_open<CLUSTER, STAGES>(bars, fours), panel_close<CLUSTER>()   before and after all others; fours: of simdgroups that compute
//   panel_room(bar, phase)   it is free in all threadgroups of the cluster, which may copy to each other's
//   panel_expect(bar, bytes)   what of this threadgroup will land next
//   panel_copy<LEN, ROWS, CLUSTER>(to, matrix, item, row, column, bar, all, asks, tid, threads)   ROWS rows of LEN elements from there
//                    on, 0 outside of the item; all: to the same place `to` of all threadgroups of the cluster, of which one asks
//   panel_wait(bar, phase)   what was expected has landed
//   panel_free<CLUSTER>(bar)   this simdgroup has read it. Whoever wrote there too calls group_fence() before
//   panel_gather<THREADS>()   a barrier of those that do not copy
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
  group_held() thread {}
  METAL_FUNC void load(const threadgroup T* a, int quarter) thread {
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
// The accumulators are looked at, so that the checker sees ones that do not exist.
template <typename T, int N> METAL_FUNC void group_start(thread tile_mma<T, 16, N, 0>& acc) { acc.get(0, 0, 0); }
METAL_FUNC void group_close() {}
template <int W, typename T, int N> METAL_FUNC void group_wait(thread tile_mma<T, 16, N, 0>& acc) { acc.get(0, 0, 0); }
template <typename T> struct panel_map {
  const device T* at;
  int items, rows, columns;
};
template <typename T>
METAL_FUNC panel_map<T> panel_matrix(threadgroup uint*, device uint*, const device T* p, int items, int rows, int columns) {
  return {p, items, rows, columns};
}
#define PANEL_ROLES 1
METAL_FUNC int panel_role() { return 0; }
template <int CLUSTER, int STAGES> METAL_FUNC void panel_open(threadgroup ulong*, int) {}
template <int CLUSTER> METAL_FUNC void panel_close() { threadgroup_barrier(mem_flags::mem_threadgroup); }
METAL_FUNC void panel_room(threadgroup ulong*, uint) { threadgroup_barrier(mem_flags::mem_threadgroup); }
METAL_FUNC void panel_expect(threadgroup ulong*, int) {}
template <int LEN, int ROWS, int CLUSTER, typename T>
METAL_FUNC void panel_copy(threadgroup T* to, panel_map<T> matrix, int item, int row, int column, threadgroup ulong*, bool, bool, int tid, int threads) {
  constexpr int ALL = LEN * ROWS;
  for (int i = tid * 8; i < ALL; i += threads * 8) {
    int r = i / LEN, c = i % LEN;
    bool there = item < matrix.items && row + r < matrix.rows && column + c < matrix.columns;
    size_t first = there ? size_t(item) * size_t(matrix.rows) + size_t(row + r) : size_t(0);
    const device T* from = matrix.at + first * size_t(matrix.columns) + (there ? size_t(column + c) : size_t(0));
    stage_zero16<false>(to + group_at<LEN>(r, c), from, there);
  }
}
METAL_FUNC void panel_wait(threadgroup ulong*, uint) { threadgroup_barrier(mem_flags::mem_threadgroup); }
template <int CLUSTER> METAL_FUNC void panel_free(threadgroup ulong*) {}
template <int THREADS> METAL_FUNC void panel_gather() { threadgroup_barrier(mem_flags::mem_threadgroup); }
#endif
#endif
