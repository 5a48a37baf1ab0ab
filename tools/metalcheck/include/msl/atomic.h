// Barriers, and the atomics that Metal has. A load or read-modify-write may switch threads; a weak CAS may fail.
#pragma once
#include "runtime.h"
#include "traits.h"

namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
MSL_I mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
MSL_I void threadgroup_barrier(mem_flags, int site = __builtin_LINE()) { msl_barrier(0, site); }
MSL_I void simdgroup_barrier(mem_flags, int site = __builtin_LINE()) { msl_barrier(1, site); }

// ---- atomics (only what Metal has)
enum memory_order { memory_order_relaxed = 0, memory_order_acquire_ = 2, memory_order_seq_cst = 5 };
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system
};
MSL_I void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
template <class T> struct atomic {
  static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, float> || is_same_v<T, bool> ||
                    is_same_v<T, ulong>,
                "no such Metal atomic");
  T _v;
  atomic() = default;
  atomic(const atomic&) = delete;
  void operator=(const atomic&) = delete;
};
template <class T> struct _id {
  using type = T;
};
template <class T> using _idt = typename _id<T>::type;
#define MSL_ATOMICS(AS) \
  template <class T> MSL_I T atomic_load_explicit(const volatile AS atomic<T>* p, memory_order o) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    msl_preempt(); \
    return __atomic_load_n_<T>((T*)&p->_v); \
  } \
  template <class T> MSL_I void atomic_store_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    msl_preempt(); \
    __atomic_store((T*)&p->_v, &v, __ATOMIC_RELAXED); \
  } \
  template <class T> MSL_I T atomic_exchange_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    msl_preempt(); \
    T r; \
    __atomic_exchange((T*)&p->_v, &v, &r, __ATOMIC_RELAXED); \
    return r; \
  } \
  template <class T> MSL_I bool atomic_compare_exchange_weak_explicit( \
      volatile AS atomic<T>* p, thread T* e, _idt<T> d, memory_order s, memory_order f) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    msl_preempt(); \
    if (msl_spurious()) { \
      *e = __atomic_load_n_<T>((T*)&p->_v); \
      return false; \
    } \
    return __atomic_compare_exchange((T*)&p->_v, e, &d, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
  } \
  template <class T> \
  MSL_I T atomic_fetch_add_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return T(a + b); }); \
  } \
  template <class T> \
  MSL_I T atomic_fetch_sub_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(!is_same_v<T, ulong>, "64-bit atomics: only min/max"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return T(a - b); }); \
  } \
  template <class T> \
  MSL_I T atomic_fetch_min_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, int> || is_same_v<T, uint>, "fetch_min: int/uint only"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return b < a ? b : a; }); \
  } \
  template <class T> \
  MSL_I T atomic_fetch_max_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, int> || is_same_v<T, uint>, "fetch_max: int/uint only"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return a < b ? b : a; }); \
  } \
  template <class T> MSL_I T atomic_fetch_or_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, int> || is_same_v<T, uint>, "int/uint only"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return T(a | b); }); \
  } \
  template <class T> \
  MSL_I T atomic_fetch_and_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, int> || is_same_v<T, uint>, "int/uint only"); \
    return _rmw<T>((T*)&p->_v, v, [](T a, T b) { return T(a & b); }); \
  } \
  template <class T> MSL_I void atomic_min_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, ulong>, "atomic_min_explicit: ulong only"); \
    _rmw<T>((T*)&p->_v, v, [](T a, T b) { return b < a ? b : a; }); \
  } \
  template <class T> MSL_I void atomic_max_explicit(volatile AS atomic<T>* p, _idt<T> v, memory_order o) { \
    static_assert(is_same_v<T, ulong>, "atomic_max_explicit: ulong only"); \
    _rmw<T>((T*)&p->_v, v, [](T a, T b) { return a < b ? b : a; }); \
  }
template <class T> MSL_I T __atomic_load_n_(T* p) {
  T r;
  __atomic_load(p, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T, class F> MSL_I T _rmw(T* p, T v, F f) {
  msl_preempt();
  T o = __atomic_load_n_(p), n = f(o, v);
  while (!__atomic_compare_exchange(p, &o, &n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) n = f(o, v);
  return o;
}
MSL_ATOMICS(device)
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;
using atomic_ulong = atomic<ulong>;

} // namespace metal
