// simdgroup_matrix 8x8: a lane holds two elements; the lane map is the one MLX's own kernels rely on.
#pragma once
#include "simd.h"

namespace metal {
MSL_I int _fm(int l) { return ((l / 4) & 4) + ((l / 2) % 4); }
MSL_I int _fn(int l) { return ((l / 4) & 2) * 2 + (l % 2) * 2; }
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  static_assert(_isf<T>, "float/half/bfloat");
  vec<T, 2> e;
#ifdef MSL_STRICT // clang does not see that a matrix past the end of an array of them is used
  static constexpr uint MADE = 0x5347a7e1u;
  uint made = MADE;
  MSL_I vec<T, 2>& thread_elements() {
    if (made != MADE) __builtin_trap();
    return e;
  }
#else
  MSL_I vec<T, 2>& thread_elements() { return e; }
#endif
  simdgroup_matrix() = default;
  MSL_I explicit simdgroup_matrix(T d) {
    int l = msl_lane();
    e[0] = _fm(l) == _fn(l) ? d : T(0);
    e[1] = _fm(l) == _fn(l) + 1 ? d : T(0);
  }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
template <class T, int R, int C> MSL_I simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.e[0] = v;
  m.e[1] = v;
  return m;
}
#ifdef MSL_STRICT // checks that load/store are reached by the whole simdgroup; costs 32 fiber switches each
#define MSL_SGSYNC msl_simd(&ld, 8, nullptr, nullptr, site)
#else
#define MSL_SGSYNC
#endif
#define MSL_SGM(AS) \
  template <class T> MSL_I void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& m, const AS T* p, \
                                               ulong ld = 8, ulong2 o = (ulong2)0, bool t = false, \
                                               int site = __builtin_LINE()) { \
    MSL_SGSYNC; \
    int l = msl_lane(); \
    for (int i = 0; i < 2; i++) { \
      ulong r = _fm(l), c = _fn(l) + i; \
      m.e[i] = t ? p[(o.y + c) * ld + o.x + r] : p[(o.y + r) * ld + o.x + c]; \
    } \
  } \
  template <class T> MSL_I void simdgroup_store(simdgroup_matrix<T, 8, 8> m, AS T* p, ulong ld = 8, \
                                                ulong2 o = (ulong2)0, bool t = false, \
                                                int site = __builtin_LINE()) { \
    MSL_SGSYNC; \
    int l = msl_lane(); \
    for (int i = 0; i < 2; i++) { \
      ulong r = _fm(l), c = _fn(l) + i; \
      if (t) p[(o.y + c) * ld + o.x + r] = m.e[i]; \
      else p[(o.y + r) * ld + o.x + c] = m.e[i]; \
    } \
  }
MSL_SGM(device)
MSL_NS inline void _mma_once(void* sv, unsigned m, const void*) {
  _slot* s = (_slot*)sv;
  float A[8][8], B[8][8], D[8][8];
  for (int l = 0; l < 32; l++) {
    float* f = (float*)s[l].b;
    int r = _fm(l), c = _fn(l);
    A[r][c] = f[0];
    A[r][c + 1] = f[1];
    B[r][c] = f[2];
    B[r][c + 1] = f[3];
  }
  for (int i = 0; i < 8; i++) {
    for (int j = 0; j < 8; j++) D[i][j] = 0;
    for (int k = 0; k < 8; k++)
      for (int j = 0; j < 8; j++) D[i][j] += A[i][k] * B[k][j];
  }
  for (int l = 0; l < 32; l++) {
    float* f = (float*)s[l].b;
    int r = _fm(l), c = _fn(l);
    f[0] = D[r][c];
    f[1] = D[r][c + 1];
  }
}
template <class D, class A, class B, class C>
MSL_I void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d,
                                         thread simdgroup_matrix<A, 8, 8>& a,
                                         thread simdgroup_matrix<B, 8, 8>& b,
                                         thread simdgroup_matrix<C, 8, 8>& c, int site = __builtin_LINE()) {
  static_assert(is_same_v<D, C>, "D and C types");
  float x[4] = {float(a.e[0]), float(a.e[1]), float(b.e[0]), float(b.e[1])};
  float* r = (float*)msl_simd(x, 16, _mma_once, nullptr, site);
  d.e[0] = D(r[0] + float(c.e[0]));
  d.e[1] = D(r[1] + float(c.e[1]));
}
template <class D, class A, class B>
MSL_I void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, thread simdgroup_matrix<A, 8, 8>& a,
                              thread simdgroup_matrix<B, 8, 8>& b, int site = __builtin_LINE()) {
  simdgroup_matrix<D, 8, 8> z = make_filled_simdgroup_matrix<D, 8, 8>(D(0));
  simdgroup_multiply_accumulate(d, a, b, z, site);
}
template <class T, size_t N> struct array {
  T v[N];
  MSL_I T& operator[](size_t i) { return v[i]; }
  MSL_I const T& operator[](size_t i) const { return v[i]; }
};
} // namespace metal
