#ifndef MLXSPARSE_NEAR
#define MLXSPARSE_NEAR
// The eight blocks of 2 x 2 x 2 sites (coord_hash.h) in which the 27 neighbours of a site lie, d = 4 dx + 2 dy + dz: along an
// axis 0 is the site's own block, 1 the other one, which is the next for an odd coordinate and the one before for an even one.
// Sites of one block so ask for the same ones together. A block's cells are c = 4 cx + 2 cy + cz; odd: 0 or 1.
METAL_FUNC int near_block(int c, uint d) { return coord_half(c) + ((d & 1u) == 0u ? 0 : (c & 1) != 0 ? 1 : -1); }

// Along an axis: the tap of cell 0, where that is a neighbour.
METAL_FUNC int near_tap(uint d, int odd) { return (d & 1u) == 0u ? 1 - odd : 3 * odd - 1; }

// Of the cells `all`, of which those of cell 1 along an axis are `upper`: which are neighbours.
METAL_FUNC uint near_cells(uint d, int odd, uint upper, uint all) {
  return (d & 1u) == 0u ? all : odd == 0 ? all & upper : all & ~upper;
}
#endif
