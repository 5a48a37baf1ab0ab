// Open-addressing table of blocks of 2 x 2 x 2 sites. A slot names one row of its block, row + 1 in its low bits, 0 is
// empty; blocks are compared in full, so there is no packing limit. The bits above hold a tag from the hash, so that most
// foreign entries are told apart without reading their coordinates. The probe step is a second hash: keys that meet in
// their first slot part ways. Behind the slots come eight cells of each row: cell c of row r holds ~row of site c of the
// block that r stands for, 0 where there is none. Of 27 neighbours all lie in eight blocks.
#ifndef MLXSPARSE_COORD_HASH
#define MLXSPARSE_COORD_HASH
METAL_FUNC uint coord_mix(uint h, uint v) {
  h = (h ^ v) * 0x9E3779B1u;
  h ^= h >> 15;
  h *= 0x85EBCA77u;
  return h ^ (h >> 13);
}

METAL_FUNC int coord_half(int c) { return c >> 1; } // the block of a coordinate, rounded down

METAL_FUNC uint coord_cell(int x, int y, int z) { return uint(x & 1) << 2 | uint(y & 1) << 1 | uint(z & 1); }

// Of (b, x, y) of a block; coord_mix with z gives the hash. Neighbours along z share it.
METAL_FUNC uint coord_column(int b, int x, int y) {
  return coord_mix(coord_mix(coord_mix(0x27D4EB2Fu, uint(b)), uint(x)), uint(y));
}

METAL_FUNC uint coord_hash(int b, int x, int y, int z) { return coord_mix(coord_column(b, x, y), uint(z)); }

// Odd, so that in a table whose size is a power of two it visits every slot.
METAL_FUNC uint coord_step(int b, int x, int y, int z) {
  return coord_mix(coord_mix(coord_mix(coord_mix(0x165667B1u, uint(z)), uint(b)), uint(y)), uint(x)) | 1u;
}

// The low bits that hold row + 1 in a table of n rows.
METAL_FUNC uint coord_rows(uint n) {
  n |= n >> 1;
  n |= n >> 2;
  n |= n >> 4;
  n |= n >> 8;
  return n | (n >> 16);
}

METAL_FUNC const device uint* coord_cells(const device uint* table, uint mask) { // behind 16 slots at least: aligned
  return table + max(size_t(mask) + 1, size_t(16));
}

METAL_FUNC uint coord_tag(uint hash, uint rows) { return (hash * 0x9E3779B1u) & ~rows; }

// Whether a row lies in block (b, x, y, z).
METAL_FUNC bool coord_inside(const device int* coords, uint row, bool wide, int b, int x, int y, int z) {
  int site[4];
  load_site(coords, size_t(row), wide, site);
  return site[0] == b && coord_half(site[1]) == x && coord_half(site[2]) == y && coord_half(site[3]) == z;
}

// The row that stands for block (b, x, y, z), which has this hash, among the n rows of coords; -1 if it is not there.
// entry: what its first slot holds.
METAL_FUNC int coord_block(
    const device int* coords, const device uint* table, uint n, uint mask, uint hash, uint entry, int b, int x, int y,
    int z) {
  bool wide = sites_aligned(coords);
  uint rows = coord_rows(n);
  uint tag = coord_tag(hash, rows);
  uint slot = hash & mask;
  uint step = 0u;
  int row = -1;
  for (uint probe = 0u; probe <= mask; probe++) {
    if (entry == 0u) break;
    uint place = (entry & rows) - 1u;
    if (((entry ^ tag) & ~rows) == 0u && place < n && coord_inside(coords, place, wide, b, x, y, z)) {
      row = int(place);
      break;
    }
    if (step == 0u) step = coord_step(b, x, y, z);
    slot = (slot + step) & mask;
    entry = table[slot];
  }
  return row;
}

// Row of site (b, x, y, z) among the n rows of coords, -1 if it is not there.
METAL_FUNC int coord_find(
    const device int* coords, const device uint* table, uint n, uint mask, int b, int x, int y, int z) {
  int bx = coord_half(x), by = coord_half(y), bz = coord_half(z);
  uint hash = coord_hash(b, bx, by, bz);
  int first = coord_block(coords, table, n, mask, hash, table[hash & mask], b, bx, by, bz);
  uint row = first < 0 ? 4294967295u : ~coord_cells(table, mask)[8 * size_t(first) + size_t(coord_cell(x, y, z))];
  return row < n ? int(row) : -1;
}
#endif
