// Open-addressing table of coordinate rows. A slot holds row + 1 in its low bits, 0 is empty; coordinates are compared in
// full, so there is no packing limit. The bits above hold a tag from the hash, so that most foreign entries are told
// apart without reading their coordinates. The probe step is a second hash: keys that meet in their first slot part ways.
#ifndef MLXSPARSE_COORD_HASH
#define MLXSPARSE_COORD_HASH
METAL_FUNC uint coord_mix(uint h, uint v) {
  h = (h ^ v) * 0x9E3779B1u;
  h ^= h >> 15;
  h *= 0x85EBCA77u;
  return h ^ (h >> 13);
}

// Of (b, x, y); coord_mix with z gives the hash. Neighbours along z share it.
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

METAL_FUNC uint coord_tag(uint hash, uint rows) { return (hash * 0x9E3779B1u) & ~rows; }

METAL_FUNC bool coord_equal(const device int* coords, uint row, bool wide, int b, int x, int y, int z) {
  int site[4];
  load_site(coords, size_t(row), wide, site);
  return site[0] == b && site[1] == x && site[2] == y && site[3] == z;
}

// Row of (b, x, y, z), which have this hash, among the n rows of coords; -1 if it is not there.
METAL_FUNC int coord_find(
    const device int* coords, const device uint* table, uint n, uint mask, uint hash, int b, int x, int y, int z) {
  bool wide = sites_aligned(coords);
  uint rows = coord_rows(n);
  uint tag = coord_tag(hash, rows);
  uint slot = hash & mask;
  uint step = 0u;
  int row = -1;
  for (uint probe = 0u; probe <= mask; probe++) {
    uint entry = table[slot];
    if (entry == 0u) break;
    uint place = (entry & rows) - 1u;
    if (((entry ^ tag) & ~rows) == 0u && place < n && coord_equal(coords, place, wide, b, x, y, z)) {
      row = int(place);
      break;
    }
    if (step == 0u) step = coord_step(b, x, y, z);
    slot = (slot + step) & mask;
  }
  return row;
}
#endif
