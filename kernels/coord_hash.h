// Open-addressing table of blocks of 2 x 2 x 2 sites. Its slots lie in buckets of four, which are read at once and taken from
// the first on. A slot names one row of its block, row + 1 in its low bits, 0 is empty; blocks are compared in full, so there
// is no packing limit. The bits above hold a tag from the hash, so that most foreign entries are told apart without reading
// their coordinates. The step to the next bucket is a second hash: keys that meet in their first part ways. Behind the slots
// come eight cells of each row: cell c of row r holds ~row of site c of the block that r stands for, 0 where there is none.
// Of 27 neighbours all lie in eight blocks.
#ifndef MLXSPARSE_COORD_HASH
#define MLXSPARSE_COORD_HASH
METAL_FUNC int coord_half(int c) { return c >> 1; } // the block of a coordinate, rounded down

METAL_FUNC uint coord_cell(int x, int y, int z) { return uint(x & 1) << 2 | uint(y & 1) << 1 | uint(z & 1); }

// Eight blocks of 4 x 4 x 4 sites share a hash, so that their first buckets lie together: in 128 bytes, in an order of their
// own, for sets whose blocks are all alike by their low bits.
METAL_FUNC uint coord_hash(int b, int x, int y, int z) {
  uint h = uint(b) * 0x9E3779B1u + uint(x >> 1) * 0xC2B2AE3Du + uint(y >> 1) * 0x27D4EB2Fu + uint(z >> 1) * 0x165667B1u;
  h = (h ^ (h >> 15)) * 0x85EBCA77u;
  return h ^ (h >> 13);
}

METAL_FUNC uint coord_first(uint hash, int x, int y, int z) { return hash << 3 | (coord_cell(x, y, z) ^ (hash >> 29)); }

// Odd, so that it visits every bucket, whose number is a power of two.
METAL_FUNC uint coord_step(int b, int x, int y, int z) {
  return (uint(b) * 0x85EBCA77u + uint(x) * 0xB5297A4Du + uint(y) * 0x68E31DA5u + uint(z) * 0x1B56C4E9u) | 1u;
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

// last: the number of slots less one, also below.
METAL_FUNC const device uint* coord_cells(const device uint* table, uint last) { return table + size_t(last) + 1; }

METAL_FUNC uint4 coord_bucket(const device uint* table, uint last, uint bucket) {
  return ((const device uint4*)table)[bucket & (last >> 2)];
}

// Whether a row lies in block (b, x, y, z).
METAL_FUNC bool coord_inside(const device int* coords, uint row, bool wide, int b, int x, int y, int z) {
  int site[4];
  load_site(coords, size_t(row), wide, site);
  return site[0] == b && coord_half(site[1]) == x && coord_half(site[2]) == y && coord_half(site[3]) == z;
}

METAL_FUNC bool coord_alike(uint entry, uint tag, uint rows) { return entry != 0u && ((entry ^ tag) & ~rows) == 0u; }

// The row that stands for block (b, x, y, z), which has this hash, among the n rows of coords; -1 if it is not there.
METAL_FUNC int coord_block(
    const device int* coords, const device uint* table, uint n, uint last, uint hash, int b, int x, int y, int z) {
  bool wide = sites_aligned(coords);
  uint rows = coord_rows(n), tag = coord_tag(hash, rows), bucket = coord_first(hash, x, y, z), step = 0u;
  uint4 four = coord_bucket(table, last, bucket);
  for (uint probe = 0u; probe <= last >> 2;) {
    uint found = coord_alike(four.w, tag, rows) ? four.w : 0u;
    if (coord_alike(four.z, tag, rows)) found = four.z;
    if (coord_alike(four.y, tag, rows)) found = four.y;
    if (coord_alike(four.x, tag, rows)) found = four.x;
    uint place = (found & rows) - 1u;
    if (place < n && coord_inside(coords, place, wide, b, x, y, z)) return int(place);
    if (found != 0u) { // another block of this tag: it has another one now
      if (four.x == found) four.x ^= ~rows;
      else if (four.y == found) four.y ^= ~rows;
      else if (four.z == found) four.z ^= ~rows;
      else four.w ^= ~rows;
    } else {
      if (four.w == 0u) break;
      if (step == 0u) step = coord_step(b, x, y, z);
      bucket += step;
      four = coord_bucket(table, last, bucket);
      probe++;
    }
  }
  return -1;
}

// Row of site (b, x, y, z) among the n rows of coords, -1 if it is not there.
METAL_FUNC int coord_find(
    const device int* coords, const device uint* table, uint n, uint last, int b, int x, int y, int z) {
  int bx = coord_half(x), by = coord_half(y), bz = coord_half(z);
  int first = coord_block(coords, table, n, last, coord_hash(b, bx, by, bz), b, bx, by, bz);
  uint row = first < 0 ? 4294967295u : ~coord_cells(table, last)[8 * size_t(first) + size_t(coord_cell(x, y, z))];
  return row < n ? int(row) : -1;
}
#endif
