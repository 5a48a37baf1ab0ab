#ifndef MLXSPARSE_NEAR
#define MLXSPARSE_NEAR
// The eight blocks of 2 x 2 x 2 sites (coord_hash.h) in which the 27 neighbours of a site lie, d = 4 dx + 2 dy + dz: along an
// axis 0 is the site's own block, 1 the other one, which is the next for an odd coordinate and the one before for an even one.
// Sites of one block so ask for the same ones together. A block's cells are c = 4 cx + 2 cy + cz; odd: 0 or 1.
// Where neighbour k - 1 along an axis lies: 8 d + c of the axis of that weight.
METAL_FUNC int near_at(int k, int odd, int weight) {
  int site = (k + 3 + odd) & 3; // of the own block's two and then the other's
  return ((site >> 1) * 8 + (site & 1)) * weight;
}

// Which of the 27 neighbours there are, a bit for each tap (kx * 3 + ky) * 3 + kz, from the 4 x 4 x 4 sites of the blocks: bit
// 16 x + 4 y + z, along an axis both of the own block first, then both of the other.
METAL_FUNC uint near_taps(ulong sites, int ox, int oy, int oz) {
  // Of an even coordinate the last of the four is the neighbour before: one round brings it to the front.
  if (ox == 0) sites = sites << 16 | sites >> 48;
  if (oy == 0) sites = (sites << 4 & 0xFFF0FFF0FFF0FFF0ul) | (sites >> 12 & 0x000F000F000F000Ful);
  if (oz == 0) sites = (sites << 1 & 0xEEEEEEEEEEEEEEEEul) | (sites >> 3 & 0x1111111111111111ul);
  uint taps = 0u;
  for (int kx = 0; kx < 3; kx++) {
    uint plane = uint(sites >> uint(16 * kx));
    taps |= ((plane & 7u) | (plane >> 1 & 56u) | (plane >> 2 & 448u)) << uint(9 * kx);
  }
  return taps;
}
#endif
