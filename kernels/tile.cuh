// CUDA body of kernels/tile.h (sm_80 and later). Follows prelude.cuh.
#define TILE_CUDA 1
template <typename T> constexpr int tile_ld(int cols, bool k_rows) {
  return cols + (sizeof(T) == 4 && k_rows ? 8 : 16 / int(sizeof(T)));
}
METAL_FUNC uint tile_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u; }
METAL_FUNC uint tile_addr(const void* p) { return uint(__cvta_generic_to_shared(p)); }
// Four 8x8 matrices of 16-bit elements, each lane its fragment; tile_ldmt transposes them.
METAL_FUNC void tile_ldm(uint (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(tile_addr(p))
               : "memory");
}
METAL_FUNC void tile_ldmt(uint (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(tile_addr(p))
               : "memory");
}
// c (16 x 8) += a (16 x 16, TF32: 16 x 8) * b
METAL_FUNC void tile_dot(float (&c)[4], const uint (&a)[4], uint b0, uint b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
METAL_FUNC void tile_dot(float (&c)[4], const uint (&a)[4], uint b0, uint b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
METAL_FUNC void tile_dot(float (&c)[4], const uint (&a)[4], uint b0, uint b1, float) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
METAL_FUNC uint tile_tf32(uint x) {
  uint r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(x)));
  return r;
}
// x as hi, its upper 19 bits, and what that leaves, of which the product takes the upper 19 bits. Two operations: on 32-bit
// numbers they are what takes the time (a conversion runs at half their rate).
METAL_FUNC void tile_split(uint x, uint& hi, uint& rest) {
  hi = x & 0xffffe000u;
  rest = __float_as_uint(__uint_as_float(x) - __uint_as_float(hi));
}

template <typename T, int M, int N, int EXACT = 1> struct tile_mma {
  static constexpr int MI = M / 16, NI = N / 8, ROWS = MI * 2, COLS = NI, KI = sizeof(T) == 4 ? 8 : 16;
  float c[MI][NI][4];
  METAL_FUNC void clear(uint) {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < NI; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[i][j][e] = 0.0f;
  }
  // fragments of one k step; 32-bit types use the 16-bit matrix load on pairs of halves, except where a true
  // transpose is needed
  template <int LDA, bool TA> static METAL_FUNC void load_a(uint (&f)[4], const T* a, int i, int k, int l) {
    if constexpr (sizeof(T) == 2 && !TA) tile_ldm(f, a + (i * 16 + (l & 15)) * LDA + k + (l >> 4) * 8);
    else if constexpr (sizeof(T) == 2)
      tile_ldmt(f, a + (k + (l & 7) + (l >> 4) * 8) * LDA + i * 16 + ((l >> 3) & 1) * 8);
    else if constexpr (!TA) tile_ldm(f, a + (i * 16 + (l & 15)) * LDA + k + (l >> 4) * 4);
    else {
      const uint* p = (const uint*)a + (k + (l & 3)) * LDA + i * 16 + (l >> 2);
      f[0] = p[0];
      f[1] = p[8];
      f[2] = p[4 * LDA];
      f[3] = p[4 * LDA + 8];
    }
  }
  template <int LDB, bool TB>
  static METAL_FUNC void load_b(uint (&f)[4], const T* b, int j, int k, int l) { // two 8-column fragments
    if constexpr (sizeof(T) == 2 && TB)
      tile_ldm(f, b + (j * 8 + (l & 7) + (l >> 4) * 8) * LDB + k + ((l >> 3) & 1) * 8);
    else if constexpr (sizeof(T) == 2) tile_ldmt(f, b + (k + (l & 15)) * LDB + j * 8 + (l >> 4) * 8);
    else if constexpr (TB) tile_ldm(f, b + (j * 8 + (l & 7) + (l >> 4) * 8) * LDB + k + ((l >> 3) & 1) * 4);
    else {
      const uint* p = (const uint*)b + (k + (l & 3)) * LDB + j * 8 + (l >> 2);
      f[0] = p[0];
      f[1] = p[4 * LDB];
      f[2] = p[8];
      f[3] = p[4 * LDB + 8];
    }
  }
  template <int K, int LDA, bool TA, int LDB, bool TB> METAL_FUNC void mma(const T* a, const T* b) {
    if constexpr (sizeof(T) == 4 && EXACT == 2) {
      multiply_add<K, LDA, TA, LDB, TB>(a, b);
      return;
    }
    int l = int(tile_lane());
    // Tensor cores cut off what TF32 sums lose, always towards zero: over a long chain that adds up. So near-fp32 gets
    // a fresh fragment for each K, and an ordinary addition.
    constexpr bool fresh = sizeof(T) == 4 && EXACT == 1;
    float part[fresh ? MI : 1][fresh ? NI : 1][4] = {};
#pragma unroll
    for (int k = 0; k < K; k += KI) {
      uint fa[MI][4], fb[NI / 2][4];
#pragma unroll
      for (int i = 0; i < MI; i++) load_a<LDA, TA>(fa[i], a, i, k, l);
#pragma unroll
      for (int j = 0; j < NI / 2; j++) load_b<LDB, TB>(fb[j], b, 2 * j, k, l);
      if constexpr (fresh) dots(part, fa, fb);
      else dots(c, fa, fb);
    }
    if constexpr (fresh) {
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) c[i][j][e] += part[i][j][e];
    }
  }
  // fp32 without tensor cores: each lane computes the elements that it holds, four k at a time where they are contiguous
  template <int K, int LDA, bool TA, int LDB, bool TB> METAL_FUNC void multiply_add(const T* a, const T* b) {
#pragma unroll 2
    for (int k = 0; k < K; k += 4) {
      float left[ROWS][4], right[COLS][2][4];
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        if constexpr (!TA) *(float4*)left[i] = *(const float4*)((const float*)a + row(i) * LDA + k);
        else
#pragma unroll
          for (int q = 0; q < 4; q++) left[i][q] = float(a[(k + q) * LDA + row(i)]);
      }
#pragma unroll
      for (int j = 0; j < COLS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if constexpr (TB) *(float4*)right[j][e] = *(const float4*)((const float*)b + (col(j) + e) * LDB + k);
          else
#pragma unroll
            for (int q = 0; q < 4; q++) right[j][e][q] = float(b[(k + q) * LDB + col(j) + e]);
        }
#pragma unroll
      for (int q = 0; q < 4; q++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
          for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) c[i / 2][j][(i & 1) * 2 + e] += left[i][q] * right[j][e][q];
    }
  }
  static METAL_FUNC void dots(float (&sum)[MI][NI][4], uint (&fa)[MI][4], uint (&fb)[NI / 2][4]) {
    if constexpr (sizeof(T) == 4) {
      uint ra[MI][4], rb[NI / 2][4];
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          uint x = fa[i][e];
          if constexpr (EXACT != 0) tile_split(x, fa[i][e], ra[i][e]);
          else fa[i][e] = tile_tf32(fa[i][e]);
        }
#pragma unroll
      for (int j = 0; j < NI / 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          uint x = fb[j][e];
          if constexpr (EXACT != 0) tile_split(x, fb[j][e], rb[j][e]);
          else fb[j][e] = tile_tf32(fb[j][e]);
        }
      if constexpr (EXACT != 0) { // small terms first
        products(sum, ra, fb);
        products(sum, fa, rb);
      }
    }
    products(sum, fa, fb);
  }
  static METAL_FUNC void products(float (&sum)[MI][NI][4], const uint (&fa)[MI][4], const uint (&fb)[NI / 2][4]) {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < NI; j++) tile_dot(sum[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1], T());
  }
  METAL_FUNC int row(int i) const { return i * 8 + int(tile_lane() >> 2); }
  METAL_FUNC int col(int j) const { return j * 8 + int(tile_lane() & 3) * 2; }
  METAL_FUNC float get(int i, int j, int e) const { return c[i / 2][j][(i & 1) * 2 + e]; }
};

template <typename T, int COUNT, bool REUSE = false> struct tile_copy {
  METAL_FUNC void fetch(int, T* dst, const T* src, bool ok) {
    int n = ok ? 16 : 0;
    if constexpr (REUSE)
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(tile_addr(dst)), "l"(src), "r"(n) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile_addr(dst)), "l"(src), "r"(n) : "memory");
  }
  METAL_FUNC void land() {}
};
METAL_FUNC void tile_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> METAL_FUNC void tile_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
template <typename T> METAL_FUNC bool tile_aligned(const T* p) { return (size_t(p) & 15) == 0; }
METAL_FUNC void tile_put2(float* p, float x, float y, bool aligned) {
  if (aligned) *(float2*)p = make_float2(x, y);
  else {
    p[0] = x;
    p[1] = y;
  }
}
METAL_FUNC void tile_put2(__half* p, float x, float y, bool aligned) {
  if (aligned) *(__half2*)p = __floats2half2_rn(x, y);
  else {
    p[0] = __half(x);
    p[1] = __half(y);
  }
}
METAL_FUNC void tile_put2(__nv_bfloat16* p, float x, float y, bool aligned) {
  if (aligned) *(__nv_bfloat162*)p = __floats2bfloat162_rn(x, y);
  else {
    p[0] = __nv_bfloat16(x);
    p[1] = __nv_bfloat16(y);
  }
}
METAL_FUNC void tile_add2(float* p, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.relaxed.gpu.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "f"(x), "f"(y) : "memory");
#else
  atomicAdd(p, x);
  atomicAdd(p + 1, y);
#endif
}
template <typename T> METAL_FUNC void tile_keep2(T* p, float x, float y) { tile_put2(p, x, y, true); }
template <typename T> METAL_FUNC void tile_row16(T* to, const T* from, bool ok) {
  *(uint4*)to = ok ? *(const uint4*)from : make_uint4(0u, 0u, 0u, 0u);
}
#define TILE_UNROLL _Pragma("unroll")
#define TILE_ROLLED _Pragma("unroll 1") // the rare way: short rather than fast
