// What runtime.cpp and the C library give to the shim.
#pragma once
#include "types.h"

extern "C" {
void msl_barrier(int kind, int site) __attribute__((convergent));
void* msl_simd(const void* in, unsigned size, void (*fn)(void* slots, unsigned mask, const void* aux),
               const void* aux, int site) __attribute__((convergent));
unsigned msl_lane(void);
unsigned msl_mask(void);
void msl_preempt(void);
int msl_spurious(void);
void* msl_tg(size_t n, int line);
void* memcpy(void*, const void*, size_t);
#define MSL_MATH1(X) \
  X(exp) X(exp2) X(log) X(log2) X(log10) X(sqrt) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) \
  X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(floor) X(ceil) X(round) X(trunc) X(rint) X(fabs)
#define X(n) float n##f(float) noexcept;
MSL_MATH1(X)
#undef X
float powf(float, float) noexcept;
float fmodf(float, float) noexcept;
float atan2f(float, float) noexcept;
}

