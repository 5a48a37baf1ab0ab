#ifndef MLXSPARSE_TAP_KEY
#define MLXSPARSE_TAP_KEY
// Sort key of a row by the mask of its taps: window (5 bits), place of the mask in Gray code order, in which neighbours
// differ in few taps; 2^32 - 1 for rows without a tap, which so come last.
METAL_FUNC uint tap_key(uint mask, uint row, uint window) {
  uint place = mask;
  for (uint s = 1u; s < 32u; s *= 2u) place ^= place >> s;
  return mask == 0u ? ~0u : min(row / window, 30u) << 27 | place;
}
#endif
