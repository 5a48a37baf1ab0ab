// Math and integer functions: float, half and bfloat only, as Metal has no double.
#pragma once
#include "runtime.h"
#include "traits.h"

namespace metal {
#define X(n) \
  MSL_I float n(float x) { return ::n##f(x); } \
  MSL_I half n(half x) { return half(::n##f(float(x))); } \
  MSL_I bfloat n(bfloat x) { return bfloat(::n##f(float(x))); }
MSL_MATH1(X)
namespace precise {
MSL_MATH1(X)
}
namespace fast {
MSL_MATH1(X)
}
#undef X
template <class T> MSL_I enable_if_t<_isf<T>, T> rsqrt(T x) { return T(1.f / ::sqrtf(float(x))); }
template <class T> MSL_I enable_if_t<_isf<T>, T> pow(T a, T b) { return T(::powf(float(a), float(b))); }
template <class T> MSL_I enable_if_t<_isf<T>, T> fmod(T a, T b) { return T(::fmodf(float(a), float(b))); }
template <class T> MSL_I enable_if_t<_isf<T>, T> atan2(T a, T b) { return T(::atan2f(float(a), float(b))); }
template <class T> MSL_I enable_if_t<_isf<T>, T> fma(T a, T b, T c) {
  return T(__builtin_fmaf(float(a), float(b), float(c)));
}
template <class T> MSL_I enable_if_t<_isf<T>, T> copysign(T a, T b) {
  return T(__builtin_copysignf(float(a), float(b)));
}
template <class T> MSL_I bool isnan(T x) { return __builtin_isnan(float(x)); }
template <class T> MSL_I bool isinf(T x) { return __builtin_isinf(float(x)); }
template <class T> MSL_I bool isfinite(T x) { return __builtin_isfinite(float(x)); }
template <class T> MSL_I bool signbit(T x) { return __builtin_signbit(float(x)); }
template <class T> MSL_I constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> MSL_I constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T> MSL_I constexpr T clamp(T x, T a, T b) { return min(max(x, a), b); }
template <class T> MSL_I constexpr T abs(T x) { return x < T(0) ? T(-x) : x; }
template <class T> MSL_I T select(T a, T b, bool c) { return c ? b : a; }
template <class T> MSL_I T fmin(T a, T b) { return a < b ? a : b; }
template <class T> MSL_I T fmax(T a, T b) { return a > b ? a : b; }
template <class T> MSL_I T divide(T a, T b) { return a / b; }
MSL_I uint popcount(uint x) { return __builtin_popcount(x); }
MSL_I ulong popcount(ulong x) { return __builtin_popcountl(x); }
MSL_I uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
MSL_I uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
MSL_I int clz(int x) { return clz((uint)x); }
MSL_I int ctz(int x) { return ctz((uint)x); }
MSL_I uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
MSL_I ulong ctz(ulong x) { return x ? __builtin_ctzl(x) : 64; }
MSL_I ulong clz(ulong x) { return x ? __builtin_clzl(x) : 64; }
MSL_I uint mulhi(uint a, uint b) { return ((ulong)a * b) >> 32; }
MSL_I uint rotate(uint x, uint n) {
  n &= 31;
  return n ? (x << n) | (x >> (32 - n)) : x;
}
template <class T> MSL_I T extract_bits(T x, uint o, uint b) { return (x >> o) & T((1ul << b) - 1); }

} // namespace metal
