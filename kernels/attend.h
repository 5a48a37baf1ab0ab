// What block_attend.metal does to accumulators (tile.h): the Metal body; the CUDA one is in stage.cuh.
//   tile_set(t, i, j, e, v)   element (row(i), col(j) + e) = v
//   tile_fade(t, i, f)        row i *= f
//   tile_row_max, tile_row_sum(x)   over the lanes that hold one row
//   tile_apply<LDP, LDV>(o, p, ps, v)   o (M x D) += p (M x N) * v (N x D); ps: threadgroup memory for p, M x LDP
//   tile_held<T, M, K>        M x K of 16 bits that stay in registers; .load<LDA>(a) from threadgroup memory, [m][k]
//   tile_mma_held<LDB>(p, a, b)   p (M x N) += a (M x K) * b, stored [n][k]
//   ATTEND_REGISTERS: p of 16 bits goes through registers, ps is not used
#ifndef MLXSPARSE_ATTEND
#define MLXSPARSE_ATTEND
#ifndef STAGE_CUDA
#define ATTEND_REGISTERS 0
template <typename T, int M, int N, int E> METAL_FUNC void tile_set(thread tile_mma<T, M, N, E>& t, int i, int j, int e, float v) {
  t.c[i * (N / 8) + j].thread_elements()[e] = v;
}
template <typename T, int M, int N, int E> METAL_FUNC void tile_fade(thread tile_mma<T, M, N, E>& t, int i, float f) {
  TILE_UNROLL
  for (int j = 0; j < N / 8; j++) {
    t.c[i * (N / 8) + j].thread_elements()[0] *= f;
    t.c[i * (N / 8) + j].thread_elements()[1] *= f;
  }
}
template <typename T, int M, int K> struct tile_held {
  simdgroup_matrix<T, 8, 8> f[M * K / 64];
  tile_held() thread {}
  template <int LDA> METAL_FUNC void load(const threadgroup T* a) thread {
    TILE_UNROLL
    for (int i = 0; i < M * K / 64; i++) simdgroup_load(f[i], a + i % (M / 8) * 8 * LDA + i / (M / 8) * 8, LDA);
  }
};
template <int LDB, typename T, int M, int N, int K, int E>
METAL_FUNC void tile_mma_held(thread tile_mma<T, M, N, E>& p, thread tile_held<T, M, K>& a, const threadgroup T* b) {
  TILE_UNROLL
  for (int k = 0; k < K / 8; k++) {
    TILE_UNROLL
    for (int j = 0; j < N / 8; j++) {
      simdgroup_matrix<T, 8, 8> fb;
      simdgroup_load(fb, b + j * 8 * LDB + k * 8, LDB, ulong2(0), true);
      TILE_UNROLL
      for (int i = 0; i < M / 8; i++)
        simdgroup_multiply_accumulate(p.c[i * (N / 8) + j], a.f[k * (M / 8) + i], fb, p.c[i * (N / 8) + j]);
    }
  }
}
METAL_FUNC float tile_row_max(float x) {
  x = max(x, simd_shuffle_xor(x, ushort(1)));
  return max(x, simd_shuffle_xor(x, ushort(8)));
}
METAL_FUNC float tile_row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(8));
}
#endif
template <int LDP, int LDV, typename T, int M, int N, int D, int E>
METAL_FUNC void tile_apply_memory(thread tile_mma<T, M, D, E>& o, thread tile_mma<T, M, N, E>& p, threadgroup T* ps,
                                  const threadgroup T* v) {
  tile_keep<LDP>(ps, p);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  o.template mma<N, LDP, false, LDV, false>(ps, v);
}
#ifndef STAGE_CUDA
template <int LDP, int LDV, typename T, int M, int N, int D, int E>
METAL_FUNC void tile_apply(thread tile_mma<T, M, D, E>& o, thread tile_mma<T, M, N, E>& p, threadgroup T* ps,
                           const threadgroup T* v) {
  tile_apply_memory<LDP, LDV>(o, p, ps, v);
}
#else
template <int LDP, int LDV, typename T, int M, int N, int D, int E>
METAL_FUNC void tile_apply(thread tile_mma<T, M, D, E>& o, thread tile_mma<T, M, N, E>& p, threadgroup T* ps,
                           const threadgroup T* v) {
  if constexpr (sizeof(T) == 2) tile_apply_registers<LDV>(o, p, v);
  else tile_apply_memory<LDP, LDV>(o, p, ps, v);
}
#endif
#endif
