// Metal's names for CUDA. It goes first into the `header` argument of mx.fast.cuda_kernel, after MLX's own utils.cuh. The
// loader turns `threadgroup T x[N];` in a kernel's body into `__shared__`; the rest is macros. Matrix tiles: tile.cuh.
#define device
#define constant
#define threadgroup
#define thread
#define METAL_FUNC __device__ __forceinline__
#if __CUDA_ARCH__ >= 900
#define CLUSTERED(n) __cluster_dims__(n, 1, 1) // threadgroups that run together
#else
#define CLUSTERED(n)
#endif
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
typedef unsigned long long ulong;
using bfloat = __nv_bfloat16;
using bfloat16_t = __nv_bfloat16;
using float16_t = __half;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
namespace metal {
__device__ __forceinline__ uint _lin() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__device__ __forceinline__ uint3 _u3(uint x, uint y, uint z) {
  uint3 r;
  r.x = x;
  r.y = y;
  r.z = z;
  return r;
}
__device__ __forceinline__ uint3 _tpig() {
  return _u3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
             blockIdx.z * blockDim.z + threadIdx.z);
}
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
__device__ __forceinline__ mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }
enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T v;
};
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;
using atomic_float = atomic<float>;
template <class T> struct _id {
  using type = T;
};
template <class T> using _idt = typename _id<T>::type;
template <class T> METAL_FUNC T atomic_load_explicit(const volatile atomic<T>* p, memory_order) {
  return *(const volatile T*)&p->v;
}
template <class T> METAL_FUNC void atomic_store_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  *(volatile T*)&p->v = v;
}
template <class T> METAL_FUNC T atomic_exchange_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicExch((T*)&p->v, v);
}
template <class T> METAL_FUNC bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* p, T* e, _idt<T> d,
                                                                         memory_order, memory_order) {
  T o = atomicCAS((T*)&p->v, *e, d);
  bool ok = o == *e;
  *e = o;
  return ok;
}
template <class T> METAL_FUNC T atomic_fetch_add_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicAdd((T*)&p->v, v);
}
template <class T> METAL_FUNC T atomic_fetch_sub_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicAdd((T*)&p->v, T(-v));
}
template <class T> METAL_FUNC T atomic_fetch_min_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicMin((T*)&p->v, v);
}
template <class T> METAL_FUNC T atomic_fetch_max_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicMax((T*)&p->v, v);
}
template <class T> METAL_FUNC T atomic_fetch_or_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicOr((T*)&p->v, v);
}
template <class T> METAL_FUNC T atomic_fetch_and_explicit(volatile atomic<T>* p, _idt<T> v, memory_order) {
  return atomicAnd((T*)&p->v, v);
}
// Simd-group functions: every lane of the warp must arrive, which the CPU executor checks.
template <class T> METAL_FUNC T simd_shuffle(T x, ushort l) { return __shfl_sync(0xffffffffu, x, l); }
template <class T> METAL_FUNC T simd_shuffle_xor(T x, ushort m) { return __shfl_xor_sync(0xffffffffu, x, m); }
template <class T> METAL_FUNC T simd_shuffle_up(T x, ushort d) { return __shfl_up_sync(0xffffffffu, x, d); }
template <class T> METAL_FUNC T simd_shuffle_down(T x, ushort d) { return __shfl_down_sync(0xffffffffu, x, d); }
template <class T> METAL_FUNC T simd_broadcast(T x, ushort l) { return __shfl_sync(0xffffffffu, x, l); }
template <class T> METAL_FUNC T simd_broadcast_first(T x) { return __shfl_sync(0xffffffffu, x, 0); }
template <class T> METAL_FUNC T simd_sum(T x) {
  for (int d = 16; d; d >>= 1) x = x + __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
template <class T> METAL_FUNC T simd_max(T x) {
  for (int d = 16; d; d >>= 1) {
    T y = __shfl_xor_sync(0xffffffffu, x, d);
    x = x < y ? y : x;
  }
  return x;
}
template <class T> METAL_FUNC T simd_min(T x) {
  for (int d = 16; d; d >>= 1) {
    T y = __shfl_xor_sync(0xffffffffu, x, d);
    x = y < x ? y : x;
  }
  return x;
}
template <class T> METAL_FUNC T simd_prefix_inclusive_sum(T x) {
  uint l = _lin() & 31;
  for (uint d = 1; d < 32; d <<= 1) {
    T y = __shfl_up_sync(0xffffffffu, x, d);
    if (l >= d) x = x + y;
  }
  return x;
}
template <class T> METAL_FUNC T simd_prefix_exclusive_sum(T x) { return simd_prefix_inclusive_sum(x) - x; }
struct simd_vote {
  uint v;
  METAL_FUNC explicit operator unsigned long long() const { return v; }
};
METAL_FUNC simd_vote simd_ballot(bool e) { return simd_vote{__ballot_sync(0xffffffffu, e)}; }
METAL_FUNC bool simd_any(bool e) { return __any_sync(0xffffffffu, e); }
METAL_FUNC bool simd_all(bool e) { return __all_sync(0xffffffffu, e); }
template <class T> METAL_FUNC T min(T a, T b) { return b < a ? b : a; }
template <class T> METAL_FUNC T max(T a, T b) { return a < b ? b : a; }
template <class T> METAL_FUNC T clamp(T x, T a, T b) { return x < a ? a : b < x ? b : x; }
template <class T, class U> METAL_FUNC T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "");
  T t;
  memcpy(&t, &u, sizeof t);
  return t;
}
METAL_FUNC uint popcount(uint x) { return __popc(x); }
METAL_FUNC float exp(float x) { return ::expf(x); }
METAL_FUNC float sqrt(float x) { return ::sqrtf(x); }
METAL_FUNC float rsqrt(float x) { return ::rsqrtf(x); }
} // namespace metal
using namespace metal;
#define thread_position_in_grid (metal::_tpig())
#define thread_position_in_threadgroup (metal::_u3(threadIdx.x, threadIdx.y, threadIdx.z))
#define threadgroup_position_in_grid (metal::_u3(blockIdx.x, blockIdx.y, blockIdx.z))
#define threads_per_threadgroup (metal::_u3(blockDim.x, blockDim.y, blockDim.z))
#define threadgroups_per_grid (metal::_u3(gridDim.x, gridDim.y, gridDim.z))
#define threads_per_grid (metal::_u3(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z))
#define thread_index_in_threadgroup (metal::_lin())
#define thread_index_in_simdgroup (metal::_lin() & 31u)
#define simdgroup_index_in_threadgroup (metal::_lin() >> 5)
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) >> 5)
#define threads_per_simdgroup 32u
#define thread_execution_width 32u
