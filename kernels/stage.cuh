// CUDA body of kernels/stage.h (sm_80 and later). Follows tile.cuh.
#define STAGE_CUDA 1
#define STAGE_ROLLED _Pragma("unroll 1") // the rare way: short rather than fast
template <typename T> METAL_FUNC void stage_copy16(T* to, const T* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tile_addr(to)), "l"(from) : "memory");
}
template <bool KEEP, typename T> METAL_FUNC void stage_zero16(T* to, const T* from, bool ok) {
  if constexpr (KEEP)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(tile_addr(to)), "l"(from), "r"(ok ? 16 : 0) : "memory");
  else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile_addr(to)), "l"(from), "r"(ok ? 16 : 0) : "memory");
}
METAL_FUNC void stage_close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> METAL_FUNC void stage_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
METAL_FUNC uint stage_pack(__half x, __half y) {
  return uint(__half_as_ushort(x)) | uint(__half_as_ushort(y)) << 16;
}
METAL_FUNC uint stage_pack(__nv_bfloat16 x, __nv_bfloat16 y) {
  return uint(__bfloat16_as_ushort(x)) | uint(__bfloat16_as_ushort(y)) << 16;
}
METAL_FUNC uint stage_pack(float, float) { return 0u; }
template <typename T> METAL_FUNC void stage_put2(T* to, float x, float y, bool wide) {
  if (sizeof(T) == 2 && wide) {
    *(uint*)to = stage_pack(T(x), T(y));
  } else {
    to[0] = T(x);
    to[1] = T(y);
  }
}
template <typename T> METAL_FUNC void stage_pair(T* to, float x, float y) {
  if constexpr (sizeof(T) == 2) *(uint*)to = stage_pack(T(x), T(y));
  else *(float2*)to = make_float2(x, y);
}
template <int C> METAL_FUNC int stage_rank() { return C == 1 ? 0 : int(blockIdx.x % C); }
template <int C> METAL_FUNC void stage_arrive() {
#if __CUDA_ARCH__ >= 900
  if constexpr (C > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
template <int C> METAL_FUNC void stage_meet() {
  if constexpr (C == 1) {
    __syncthreads();
  } else {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
}
template <int C> METAL_FUNC void stage_open(ulong* bars, int n, int tid) {
#if __CUDA_ARCH__ >= 900
  if constexpr (C > 1) {
    if (tid == 0) {
      for (int i = 0; i < n; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(tile_addr(bars + i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    stage_arrive<C>();
    stage_meet<C>();
  }
#endif
}
template <int C> METAL_FUNC void stage_expect(ulong* bar, int bytes) {
#if __CUDA_ARCH__ >= 900
  if constexpr (C > 1)
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(tile_addr(bar)), "r"(bytes) : "memory");
#endif
}
template <int C, typename T> METAL_FUNC void stage_share(T* to, const T* from, int bytes, ulong* bar) {
#if __CUDA_ARCH__ >= 900
  if constexpr (C > 1)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(tile_addr(to)), "l"(from), "r"(bytes), "r"(tile_addr(bar)), "h"(ushort((1 << C) - 1))
                 : "memory");
#endif
}
template <int C> METAL_FUNC void stage_await(ulong* bar, uint phase) {
#if __CUDA_ARCH__ >= 900
  if constexpr (C > 1) {
    uint done = 0u, at = tile_addr(bar);
    while (done == 0u)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(at), "r"(phase)
                   : "memory");
  }
#endif
}

// CUDA body of kernels/attend.h.
#define ATTEND_REGISTERS 1
template <typename T, int M, int N, int E> METAL_FUNC void tile_set(tile_mma<T, M, N, E>& t, int i, int j, int e, float v) {
  t.c[i / 2][j][(i & 1) * 2 + e] = v;
}
template <typename T, int M, int N, int E> METAL_FUNC void tile_fade(tile_mma<T, M, N, E>& t, int i, float f) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    t.c[i / 2][j][(i & 1) * 2] *= f;
    t.c[i / 2][j][(i & 1) * 2 + 1] *= f;
  }
}
METAL_FUNC float tile_row_max(float x) {
  x = max(x, simd_shuffle_xor(x, ushort(1)));
  return max(x, simd_shuffle_xor(x, ushort(2)));
}
METAL_FUNC float tile_row_sum(float x) {
  x += simd_shuffle_xor(x, ushort(1));
  return x + simd_shuffle_xor(x, ushort(2));
}
template <typename T, int M, int K> struct tile_held {
  uint f[K / 16][M / 16][4];
  template <int LDA> METAL_FUNC void load(const T* a) {
    int l = int(tile_lane());
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
      for (int i = 0; i < M / 16; i++) tile_ldm(f[k][i], a + (i * 16 + (l & 15)) * LDA + k * 16 + (l >> 4) * 8);
  }
};
template <int LDB, typename T, int M, int N, int K, int E>
METAL_FUNC void tile_mma_held(tile_mma<T, M, N, E>& p, tile_held<T, M, K>& a, const T* b) {
  int l = int(tile_lane());
#pragma unroll
  for (int k = 0; k < K / 16; k++) {
    uint fb[N / 16][4];
#pragma unroll
    for (int j = 0; j < N / 16; j++) tile_mma<T, M, N, E>::template load_b<LDB, true>(fb[j], b, 2 * j, k * 16, l);
    tile_mma<T, M, N, E>::dots(p.c, a.f[k], fb);
  }
}
// An accumulator of 16 x 16 is laid out as the left operand of the next product.
template <int LDV, typename T, int M, int N, int D, int E>
METAL_FUNC void tile_apply_registers(tile_mma<T, M, D, E>& o, tile_mma<T, M, N, E>& p, const T* v) {
  int l = int(tile_lane());
#pragma unroll
  for (int k = 0; k < N; k += 16) {
    uint fa[M / 16][4], fb[D / 16][4];
#pragma unroll
    for (int i = 0; i < M / 16; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        fa[i][h * 2] = stage_pack(T(p.c[i][k / 8 + h][0]), T(p.c[i][k / 8 + h][1]));
        fa[i][h * 2 + 1] = stage_pack(T(p.c[i][k / 8 + h][2]), T(p.c[i][k / 8 + h][3]));
      }
#pragma unroll
    for (int j = 0; j < D / 16; j++) tile_mma<T, M, D, E>::template load_b<LDV, false>(fb[j], v, 2 * j, k, l);
    tile_mma<T, M, D, E>::dots(o.c, fa, fb);
  }
}

// CUDA body of kernels/block_scores.h.
METAL_FUNC float score_exp(float x) { return __expf(x); }
METAL_FUNC float score_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
METAL_FUNC float score_log(float x) { return ::logf(x); }

// CUDA body of kernels/segment.h.
METAL_FUNC float segment_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
