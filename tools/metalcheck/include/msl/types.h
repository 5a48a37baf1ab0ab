// Scalar and vector types. Address spaces are those of typed/.
#pragma once
#define __METAL__ 1
#define __METAL_VERSION__ 320
#define device
#define constant
#define threadgroup
#define thread
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST
#define MSL_I inline __attribute__((always_inline))

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
#define half _Float16 // a keyword, as in Metal: no name of a variable
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 3.402823466e+38f
#define HALF_MAX 65504.0h
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f

// bfloat: float->bfloat is explicit (MSL 2.1), bfloat->float implicit
struct bfloat {
  unsigned short b;
  bfloat() = default;
  template <class U, class = decltype(float(U()))> MSL_I constexpr explicit bfloat(U f)
      : b(cvt(static_cast<float>(f))) {}
  MSL_I constexpr operator float() const { return __builtin_bit_cast(float, (unsigned)b << 16); }
  static MSL_I constexpr unsigned short cvt(float f) {
    unsigned u = __builtin_bit_cast(unsigned, f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((u >> 16) | 0x40);
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
#define MSL_OP(o) \
  MSL_I bfloat& operator o##=(bfloat y) { \
    *this = bfloat(float(*this) o float(y)); \
    return *this; \
  }
  MSL_OP(+)
  MSL_OP(-)
  MSL_OP(*)
  MSL_OP(/)
#undef MSL_OP
};
#define MSL_OP(o) \
  MSL_I constexpr bfloat operator o(bfloat x, bfloat y) { return bfloat(float(x) o float(y)); }
MSL_OP(+)
MSL_OP(-)
MSL_OP(*)
MSL_OP(/)
#undef MSL_OP
MSL_I constexpr bfloat operator-(bfloat x) { return bfloat(-float(x)); }

namespace metal {
template <class T, int N> struct _bvec {
  T v[N];
  _bvec() = default;
  MSL_I explicit _bvec(T x) {
    for (int i = 0; i < N; i++) v[i] = x;
  }
  MSL_I T& operator[](int i) { return v[i]; }
  MSL_I const T& operator[](int i) const { return v[i]; }
};
template <class T, int N> struct _vs {
  typedef T type __attribute__((ext_vector_type(N)));
};
template <int N> struct _vs<bfloat, N> {
  typedef _bvec<bfloat, N> type;
};
template <class T, int N> using vec = typename _vs<T, N>::type;
} // namespace metal
#define MSL_V(t) \
  typedef metal::vec<t, 2> t##2; \
  typedef metal::vec<t, 3> t##3; \
  typedef metal::vec<t, 4> t##4;
MSL_V(float)
MSL_V(half)
MSL_V(bfloat)
MSL_V(int)
MSL_V(uint)
MSL_V(short)
MSL_V(ushort)
MSL_V(char)
MSL_V(uchar)
MSL_V(long)
MSL_V(ulong)
#undef MSL_V
typedef metal::vec<bool, 2> bool2;
typedef metal::vec<bool, 4> bool4;
struct packed_float3 {
  float x, y, z;
};
struct packed_int3 {
  int x, y, z;
};
// float4(a,b,c,d): multi-arg functional casts of ext vectors are not C++; route to braces
template <class V, class... A> MSL_I constexpr V _mkv(A... a) {
  if constexpr (sizeof...(A) == 1) return V(a...);
  else {
    using E = __remove_cvref(decltype(V()[0]));
    return V{static_cast<E>(a)...};
  }
}
#define MSL_M(t) _mkv<t>
#define float2(...) MSL_M(float2)(__VA_ARGS__)
#define float3(...) MSL_M(float3)(__VA_ARGS__)
#define float4(...) MSL_M(float4)(__VA_ARGS__)
#define half2(...) MSL_M(half2)(__VA_ARGS__)
#define half4(...) MSL_M(half4)(__VA_ARGS__)
#define int2(...) MSL_M(int2)(__VA_ARGS__)
#define int3(...) MSL_M(int3)(__VA_ARGS__)
#define int4(...) MSL_M(int4)(__VA_ARGS__)
#define uint2(...) MSL_M(uint2)(__VA_ARGS__)
#define uint3(...) MSL_M(uint3)(__VA_ARGS__)
#define uint4(...) MSL_M(uint4)(__VA_ARGS__)
#define ulong3(...) MSL_M(ulong3)(__VA_ARGS__)
#define ulong2(...) MSL_M(ulong2)(__VA_ARGS__)
#define short2(...) MSL_M(short2)(__VA_ARGS__)

