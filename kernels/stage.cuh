// CUDA body of kernels/stage.h (sm_80 and later). Follows tile.cuh.
#define STAGE_CUDA 1
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
template <bool LAST, typename T> METAL_FUNC void stage_put16(T* to, const T* from) {
  if constexpr (LAST) __stcs((uint4*)to, *(const uint4*)from);
  else *(uint4*)to = *(const uint4*)from;
}
template <typename T> METAL_FUNC void stage_pair(T* to, float x, float y) {
  if constexpr (sizeof(T) == 2) *(uint*)to = stage_pack(T(x), T(y));
  else *(float2*)to = make_float2(x, y);
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






// CUDA body of kernels/group.h: wgmma, of sm_90 alone; elsewhere nobody launches what uses it.
#define GROUP_MEMORY 0
template <int LEN> METAL_FUNC int group_at(int r, int c) {
  static_assert(LEN == 64, "rows of 128 bytes");
  return r * 64 + (((c >> 3) ^ (r & 7)) << 3);
}
template <typename T> METAL_FUNC T* group_base(T* p) { return p + ((0u - tile_addr(p)) & 1023u) / uint(sizeof(T)); }
// Where a product finds an operand: 128-byte swizzle, distances in bytes between panels along n and between 8 rows.
METAL_FUNC ulong group_place(const void* p, uint panel) {
  return ulong((tile_addr(p) & 0x3ffffu) >> 4) | ulong(panel >> 4) << 16 | ulong(1024u >> 4) << 32 | ulong(1) << 62;
}
METAL_FUNC void group_fence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <typename T, int N> METAL_FUNC void group_hold(tile_mma<T, 16, N, 0>& acc) {
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) asm volatile("" : "+f"(acc.c[0][j][e])::"memory");
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GROUP_C1(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define GROUP_C4(j) GROUP_C1(j), GROUP_C1(j + 1), GROUP_C1(j + 2), GROUP_C1(j + 3)
#define GROUP_C8(j) GROUP_C4(j), GROUP_C4(j + 4)
#define GROUP_C16(j) GROUP_C8(j), GROUP_C8(j + 8)
#define GROUP_C32(j) GROUP_C16(j), GROUP_C16(j + 16)
#define GROUP_R64 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GROUP_O64 GROUP_C8(0)
#define GROUP_R128 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GROUP_O128 GROUP_C16(0)
#define GROUP_R256 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define GROUP_O256 GROUP_C32(0)
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[8][4], ulong a, ulong b, __half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" GROUP_R64 "}, %32, %33, 1, 1, 1, %34, %35;"
               : GROUP_O64 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> METAL_FUNC void group_step_held(float (&c)[8][4], const uint (&a)[4], ulong b, __half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" GROUP_R64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
               : GROUP_O64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[8][4], ulong a, ulong b, __nv_bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GROUP_R64 "}, %32, %33, 1, 1, 1, %34, %35;"
               : GROUP_O64 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> METAL_FUNC void group_step_held(float (&c)[8][4], const uint (&a)[4], ulong b, __nv_bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" GROUP_R64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
               : GROUP_O64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[16][4], ulong a, ulong b, __half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" GROUP_R128 "}, %64, %65, 1, 1, 1, %66, %67;"
               : GROUP_O128 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> METAL_FUNC void group_step_held(float (&c)[16][4], const uint (&a)[4], ulong b, __half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" GROUP_R128 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
               : GROUP_O128 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[16][4], ulong a, ulong b, __nv_bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" GROUP_R128 "}, %64, %65, 1, 1, 1, %66, %67;"
               : GROUP_O128 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> METAL_FUNC void group_step_held(float (&c)[16][4], const uint (&a)[4], ulong b, __nv_bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" GROUP_R128 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
               : GROUP_O128 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[32][4], ulong a, ulong b, __half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" GROUP_R256 "}, %128, %129, 1, 1, 1, %130, %131;"
               : GROUP_O256 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TA, int TB> METAL_FUNC void group_step(float (&c)[32][4], ulong a, ulong b, __nv_bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" GROUP_R256 "}, %128, %129, 1, 1, 1, %130, %131;"
               : GROUP_O256 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
#else
template <int TA, int TB, int N, typename T> METAL_FUNC void group_step(float (&)[N][4], ulong, ulong, T) { __trap(); }
template <int TB, int N, typename T> METAL_FUNC void group_step_held(float (&)[N][4], const uint (&)[4], ulong, T) { __trap(); }
#endif
template <int K, bool KA, bool KB, int PANEL, typename T, int N>
METAL_FUNC void group_mma(tile_mma<T, 16, N, 0>& acc, const T* a, const T* b, int) {
  ulong pa = group_place(a, 1024u), pb = group_place(b, uint(PANEL) * 2u);
#pragma unroll
  for (int k = 0; k < 4; k++) // 16 of the reduced axis: 32 bytes of a row, or 16 rows
    group_step<!KA, !KB>(acc.c[0], pa + ulong(k * (KA ? 2 : 128)), pb + ulong(k * (KB ? 2 : 128)), T());
}
template <typename T, int K> struct group_held {
  uint f[K / 16][4];
  METAL_FUNC void load(const T* a, int quarter) {
    int l = int(tile_lane());
#pragma unroll
    for (int k = 0; k < K / 16; k++)
      tile_ldm(f[k], a + k / 4 * 64 * 64 + group_at<64>(quarter * 16 + (l & 15), k % 4 * 16 + (l >> 4) * 8));
  }
};
template <int PANEL, typename T, int N, int K>
METAL_FUNC void group_mma_held(tile_mma<T, 16, N, 0>& acc, group_held<T, K>& a, const T* b) {
  ulong pb = group_place(b, 1024u);
#pragma unroll
  for (int k = 0; k < K / 16; k++) group_step_held<0>(acc.c[0], a.f[k], pb + ulong(k / 4 * (PANEL / 8) + k % 4 * 2), T());
}
template <int PANEL, typename T, int D>
METAL_FUNC void group_apply(tile_mma<T, 16, D, 0>& acc, tile_mma<T, 16, 64, 0>& p, const T* v, T*) {
  ulong pv = group_place(v, uint(PANEL) * 2u);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint a[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      a[h * 2] = stage_pack(T(p.c[0][k * 2 + h][0]), T(p.c[0][k * 2 + h][1]));
      a[h * 2 + 1] = stage_pack(T(p.c[0][k * 2 + h][2]), T(p.c[0][k * 2 + h][3]));
    }
    group_step_held<1>(acc.c[0], a, pv + ulong(k * 128), T());
  }
}
template <int LD, int WIDE, typename T, int N> METAL_FUNC void group_turned(T* to, tile_mma<T, 16, N, 0>& acc, int row, int first) {
#if __CUDA_ARCH__ >= 900
  int l = int(tile_lane());
#pragma unroll
  for (int j = 0; j < WIDE / 8; j += 2) {
    uint f[4];
#pragma unroll
    for (int h = 0; h < 4; h++)
      f[h] = stage_pack(T(acc.c[0][first / 8 + j + h / 2][h % 2 * 2]), T(acc.c[0][first / 8 + j + h / 2][h % 2 * 2 + 1]));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(tile_addr(to + ((j + l / 16) * 8 + l % 8) * LD + row + l / 8 % 2 * 8)), "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                 : "memory");
  }
#endif
}
template <typename T, int N> METAL_FUNC void group_start(tile_mma<T, 16, N, 0>& acc) {
  group_hold(acc);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
METAL_FUNC void group_close() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int W, typename T, int N> METAL_FUNC void group_wait(tile_mma<T, 16, N, 0>& acc) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(W) : "memory");
#endif
  if constexpr (W == 0) group_hold(acc);
}

// CUDA body of the panels of kernels/group.h: the copy engine of sm_90; elsewhere nobody launches what uses it.
template <typename T> struct panel_map {
  const uint* at;
};
METAL_FUNC constexpr bool panel_is_half(__half) { return true; }
METAL_FUNC constexpr bool panel_is_half(__nv_bfloat16) { return false; }
METAL_FUNC ulong panel_at(const void* p) { return ulong(__cvta_generic_to_shared(p)); }
#define PANEL_ROLES 2
METAL_FUNC int panel_role() { return __shfl_sync(0xffffffffu, threadIdx.x >= blockDim.x - 32 ? 1 : 0, 0); }
template <typename T> METAL_FUNC panel_map<T> panel_matrix(uint* made, uint* map, const T* p, int items, int rows, int columns) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (panel_role() == 1) {
    made[tile_lane()] = 0u;
    __syncwarp();
    if (tile_lane() == 0) {
      ulong m = panel_at(made), stride = ulong(columns) * sizeof(T);
#define PANEL_SET(what, value) asm volatile("tensormap.replace.tile." what ", " value ";" ::"l"(m) : "memory")
#define PANEL_PUT(what, kind, value) asm volatile("tensormap.replace.tile." what ", %1;" ::"l"(m), kind(value) : "memory")
      PANEL_PUT("global_address.shared::cta.b1024.b64 [%0]", "l", ulong(p));
      PANEL_SET("rank.shared::cta.b1024.b32 [%0]", "0x2"); // less one
      PANEL_PUT("box_dim.shared::cta.b1024.b32 [%0], 0x0", "r", 64);
      PANEL_PUT("box_dim.shared::cta.b1024.b32 [%0], 0x1", "r", 64);
      PANEL_PUT("box_dim.shared::cta.b1024.b32 [%0], 0x2", "r", 1);
      PANEL_PUT("global_dim.shared::cta.b1024.b32 [%0], 0x0", "r", columns);
      PANEL_PUT("global_dim.shared::cta.b1024.b32 [%0], 0x1", "r", rows);
      PANEL_PUT("global_dim.shared::cta.b1024.b32 [%0], 0x2", "r", items);
      PANEL_PUT("global_stride.shared::cta.b1024.b64 [%0], 0x0", "l", stride);
      PANEL_PUT("global_stride.shared::cta.b1024.b64 [%0], 0x1", "l", stride * ulong(rows));
      PANEL_PUT("element_stride.shared::cta.b1024.b32 [%0], 0x0", "r", 1);
      PANEL_PUT("element_stride.shared::cta.b1024.b32 [%0], 0x1", "r", 1);
      PANEL_PUT("element_stride.shared::cta.b1024.b32 [%0], 0x2", "r", 1);
      if (panel_is_half(T())) PANEL_SET("elemtype.shared::cta.b1024.b32 [%0]", "0x6");
      else PANEL_SET("elemtype.shared::cta.b1024.b32 [%0]", "0xa");
      PANEL_SET("interleave_layout.shared::cta.b1024.b32 [%0]", "0x0");
      PANEL_SET("swizzle_mode.shared::cta.b1024.b32 [%0]", "0x3"); // 128 bytes: group_at
      PANEL_SET("fill_mode.shared::cta.b1024.b32 [%0]", "0x0");
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 0x80;"
                 ::"l"(map), "l"(panel_at(made)) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 0x80;" ::"l"(map) : "memory");
  }
#endif
  return {map};
}
template <int CLUSTER> METAL_FUNC void panel_close() {
#if __CUDA_ARCH__ >= 900
  if constexpr (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else __syncthreads();
#endif
}
template <int CLUSTER, int STAGES> METAL_FUNC void panel_open(ulong* bars, int fours) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(tile_addr(bars + s)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tile_addr(bars + STAGES + s)), "r"(fours * 4 * CLUSTER) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  panel_close<CLUSTER>();
#endif
}
METAL_FUNC void panel_expect(ulong* bar, int bytes) {
#if __CUDA_ARCH__ >= 900
  if (tile_lane() == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(tile_addr(bar)), "r"(bytes) : "memory");
#endif
}
template <int LEN, int ROWS, int CLUSTER, typename T>
METAL_FUNC void panel_copy(T* to, panel_map<T> matrix, int item, int row, int column, ulong* bar, bool all, bool asks, int, int) {
  static_assert(LEN == 64 && ROWS == 64, "a box of the matrix");
#if __CUDA_ARCH__ >= 900
  if (tile_lane() != 0 || !asks) return;
  if (CLUSTER > 1 && all)
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(tile_addr(to)), "l"(matrix.at), "r"(column), "r"(row), "r"(item), "r"(tile_addr(bar)), "h"((unsigned short)((1 << CLUSTER) - 1))
                 : "memory");
  else
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(tile_addr(to)), "l"(matrix.at), "r"(column), "r"(row), "r"(item), "r"(tile_addr(bar)) : "memory");
#endif
}
METAL_FUNC void panel_wait(ulong* bar, uint phase) {
#if __CUDA_ARCH__ >= 900
  for (uint landed = 0u; landed == 0u;)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(landed) : "r"(tile_addr(bar)), "r"(phase) : "memory");
#endif
}
METAL_FUNC void panel_room(ulong* bar, uint phase) {
  if (tile_lane() == 0) panel_wait(bar, phase);
}
template <int CLUSTER> METAL_FUNC void panel_free(ulong* bar) {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  if constexpr (CLUSTER > 1) {
    if (tile_lane() < CLUSTER)
      asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
                   ::"r"(tile_addr(bar)), "r"(tile_lane()) : "memory");
  } else if (tile_lane() == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tile_addr(bar)) : "memory");
  }
#endif
}
template <int THREADS> METAL_FUNC void panel_gather() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
