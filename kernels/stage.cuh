// CUDA body of kernels/stage.h (sm_80 and later). Follows tile.cuh.
#define STAGE_CUDA 1
template <typename T> METAL_FUNC void stage_copy16(T* to, const T* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tile_addr(to)), "l"(from) : "memory");
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
