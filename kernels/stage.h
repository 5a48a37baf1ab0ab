// Copies of 16 bytes from device to threadgroup memory that overlap with arithmetic where the machine can (CUDA: cp.async,
// stage.cuh, which sets STAGE_CUDA), and stores of two results.
//   stage_fetch(to, from, n, wide)   to[i] = from[i] for i < n, else 0, for the 16 bytes at `to`; wide: `from` is aligned
//   stage_move(to, from, ok, wide)   the same for 16 bytes that exist, or (ok is false) none of them
//   stage_pair(to, x, y)             two results in threadgroup memory, `to` aligned to both
//   stage_close(), stage_wait<N>()   close a group of fetches; wait until at most N younger groups are open. A barrier must
//                                    follow before other threads' data is read.
//   stage_put2(to, x, y, wide)       two neighbours
//   stage_put16<LAST>(to, from)      16 bytes of threadgroup memory, both aligned; LAST: nobody reads them soon
#ifndef MLXSPARSE_STAGE
#define MLXSPARSE_STAGE
#ifndef STAGE_CUDA
template <typename T> METAL_FUNC void stage_copy16(threadgroup T* to, const device T* from) {
  *(threadgroup uint4*)to = *(const device uint4*)from;
}
template <bool KEEP, typename T> METAL_FUNC void stage_zero16(threadgroup T* to, const device T* from, bool ok) {
  *(threadgroup uint4*)to = ok ? *(const device uint4*)from : uint4(0);
}
template <typename T> METAL_FUNC void stage_pair(threadgroup T* to, float x, float y) {
  to[0] = T(x);
  to[1] = T(y);
}
METAL_FUNC void stage_close() {}
template <int N> METAL_FUNC void stage_wait() {}
template <typename T> METAL_FUNC void stage_put2(device T* to, float x, float y, bool wide) {
  to[0] = T(x);
  to[1] = T(y);
}
template <bool LAST, typename T> METAL_FUNC void stage_put16(device T* to, const threadgroup T* from) {
  *(device uint4*)to = *(const threadgroup uint4*)from;
}
#endif
template <typename T> METAL_FUNC void stage_fetch(threadgroup T* to, const device T* from, int n, bool wide) {
  constexpr int VEC = 16 / int(sizeof(T));
  if (wide && n >= VEC) {
    stage_copy16(to, from);
  } else {
    for (int i = 0; i < VEC; i++) to[i] = i < n ? from[i] : T(0.0f);
  }
}
template <typename T> METAL_FUNC void stage_move(threadgroup T* to, const device T* from, bool ok, bool wide) {
  if (wide) {
    stage_zero16<false>(to, from, ok);
  } else {
    TILE_ROLLED
    for (int i = 0; i < 16 / int(sizeof(T)); i++) to[i] = ok ? from[i] : T(0.0f);
  }
}
template <typename T> METAL_FUNC bool stage_aligned(const device T* p) { return (size_t(p) & 15) == 0; }
#endif
