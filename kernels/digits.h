// Sorting by digits of 8 bits. A simdgroup takes 512 keys, 32 at a time: key 512 s + 32 r + lane of 4096 a threadgroup.
#ifndef MLXSPARSE_DIGITS
#define MLXSPARSE_DIGITS
// The lanes that hold the same digit, of those that are live; all lanes ask.
METAL_FUNC uint lanes_alike(uint digit, bool live) {
  uint alike = uint(ulong(simd_ballot(live)));
  for (uint b = 0u; b < 8u; b++) {
    bool one = (digit >> b & 1u) != 0u;
    uint ones = uint(ulong(simd_ballot(one)));
    alike &= one ? ones : ~ones;
  }
  return alike;
}
#endif
