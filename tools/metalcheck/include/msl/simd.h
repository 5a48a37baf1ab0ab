// Simd-group functions: a collective runs once, by the last lane to arrive.
#pragma once
#include "runtime.h"
#include "traits.h"

namespace metal {
#define MSL_NS __attribute__((noinline, no_sanitize("thread", "address", "undefined")))
MSL_NS static void _cp(void* d, const void* s, unsigned n) {
  for (unsigned i = 0; i < n; i++) ((volatile char*)d)[i] = ((const volatile char*)s)[i];
}
#ifdef MSL_STRICT
#define MSL_CP _cp
#else
#define MSL_CP memcpy
#endif
struct _slot {
  alignas(16) unsigned char b[32];
};
template <class T> inline constexpr bool _simdT =
    !(is_same_v<T, bool> || is_same_v<T, long> || is_same_v<T, ulong>);
template <class T, class F> MSL_I T _coll(T x, F, int site) {
  static_assert(_simdT<T>, "Metal simd-group functions take no bool / 64-bit integers");
  static_assert(sizeof(T) <= 16, "");
  T r;
  void* p = msl_simd(
      &x, sizeof(T), [](void* s, unsigned m, const void*) { F::template run<T>((_slot*)s, m); }, nullptr,
      site);
  MSL_CP(&r, p, sizeof(T));
  return r;
}
template <class T> MSL_I T _get(_slot* s, int i) {
  T v;
  MSL_CP(&v, s[i].b, sizeof(T));
  return v;
}
template <class T> MSL_I void _put(_slot* s, int i, T v) { MSL_CP(s[i].b, &v, sizeof(T)); }
#define MSL_RED(name, expr) \
  struct _r_##name { \
    template <class T> MSL_NS static void run(_slot* s, unsigned m) { \
      bool f = true; \
      T a = T(); \
      for (int i = 0; i < 32; i++) \
        if (m >> i & 1) { \
          T b = _get<T>(s, i); \
          a = f ? b : T(expr); \
          f = false; \
        } \
      for (int i = 0; i < 32; i++) _put<T>(s, i, a); \
    } \
  }; \
  template <class T> MSL_I T name(T x, int site = __builtin_LINE()) { return _coll(x, _r_##name{}, site); }
MSL_RED(simd_sum, (a + b))
MSL_RED(simd_product, (a * b))
MSL_RED(simd_min, (b < a ? b : a))
MSL_RED(simd_max, (a < b ? b : a))
MSL_RED(simd_and, (a & b))
MSL_RED(simd_or, (a | b))
MSL_RED(simd_xor, (a ^ b))
#define MSL_SCAN(name, incl, idn, expr) \
  struct _s_##name { \
    template <class T> MSL_NS static void run(_slot* s, unsigned m) { \
      T a = T(idn); \
      for (int i = 0; i < 32; i++) \
        if (m >> i & 1) { \
          T b = _get<T>(s, i); \
          T n = T(expr); \
          _put<T>(s, i, incl ? n : a); \
          a = n; \
        } \
    } \
  }; \
  template <class T> MSL_I T name(T x, int site = __builtin_LINE()) { return _coll(x, _s_##name{}, site); }
MSL_SCAN(simd_prefix_exclusive_sum, false, 0, (a + b))
MSL_SCAN(simd_prefix_inclusive_sum, true, 0, (a + b))
MSL_SCAN(simd_prefix_exclusive_product, false, 1, (a * b))
MSL_SCAN(simd_prefix_inclusive_product, true, 1, (a * b))

// Shuffles: every lane deposits, then reads lane `src`; 0xCD bytes if that lane is not active.
template <class T> MSL_I T _shuf(T x, int src, bool keep, T other, int site) {
  static_assert(_simdT<T>, "Metal simd_shuffle takes no bool / 64-bit integers");
  static_assert(sizeof(T) <= 16, "");
  char* p = (char*)msl_simd(&x, sizeof(T), nullptr, nullptr, site);
  if (keep) return other;
  T r;
  if (src < 0 || src > 31 || !(msl_mask() >> src & 1)) {
    __builtin_memset(&r, 0xCD, sizeof(T));
    return r;
  }
  MSL_CP(&r, p + (src - (int)msl_lane()) * (int)sizeof(_slot), sizeof(T));
  return r;
}
template <class T> MSL_I T simd_shuffle(T x, ushort l, int site = __builtin_LINE()) {
  return _shuf(x, l, false, x, site);
}
template <class T> MSL_I T simd_shuffle_xor(T x, ushort m, int site = __builtin_LINE()) {
  return _shuf(x, (int)(msl_lane() ^ m), false, x, site);
}
template <class T> MSL_I T simd_shuffle_up(T x, ushort d, int site = __builtin_LINE()) {
  int s = (int)msl_lane() - d;
  return _shuf(x, s, s < 0, x, site);
}
template <class T> MSL_I T simd_shuffle_down(T x, ushort d, int site = __builtin_LINE()) {
  int s = (int)msl_lane() + d;
  return _shuf(x, s, s > 31, x, site);
}
template <class T> MSL_I T simd_shuffle_and_fill_up(T x, T f, ushort d, int site = __builtin_LINE()) {
  int s = (int)msl_lane() - d;
  T o = f;
  return _shuf(x, s < 0 ? 0 : s, s < 0, o, site);
}
template <class T> MSL_I T simd_broadcast(T x, ushort l, int site = __builtin_LINE()) {
  return _shuf(x, l, false, x, site);
}
template <class T> MSL_I T simd_broadcast_first(T x, int site = __builtin_LINE()) {
  char* p = (char*)msl_simd(&x, sizeof(T), nullptr, nullptr, site);
  T r;
  MSL_CP(&r, p + ((int)__builtin_ctz(msl_mask()) - (int)msl_lane()) * (int)sizeof(_slot), sizeof(T));
  return r;
}
struct simd_vote {
  ulong v;
  MSL_I explicit operator ulong() const { return v; }
  MSL_I bool all() const { return (uint)v == ~0u; }
  MSL_I bool any() const { return v != 0; }
};
struct _r_ballot {
  template <class T> MSL_NS static void run(_slot* s, unsigned m) {
    uint a = 0;
    for (int i = 0; i < 32; i++)
      if ((m >> i & 1) && _get<uint>(s, i)) a |= 1u << i;
    for (int i = 0; i < 32; i++) _put<uint>(s, i, a);
  }
};
MSL_I simd_vote simd_ballot(bool e, int site = __builtin_LINE()) {
  return simd_vote{_coll<uint>(e, _r_ballot{}, site)};
}
MSL_I bool simd_any(bool e, int site = __builtin_LINE()) { return _coll<uint>(e, _r_ballot{}, site) != 0; }
MSL_I bool simd_all(bool e, int site = __builtin_LINE()) { return _coll<uint>(!e, _r_ballot{}, site) == 0; }
MSL_I simd_vote simd_active_threads_mask(int site = __builtin_LINE()) { return simd_ballot(true, site); }
MSL_I bool simd_is_first(int site = __builtin_LINE()) {
  uint m = _coll<uint>(1, _r_ballot{}, site);
  return msl_lane() == (uint)__builtin_ctz(m);
}

} // namespace metal
