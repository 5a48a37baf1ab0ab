// The map of a set onto itself of 3 x 3 x 3 taps in the order of tiles, from the blocks around each row: as tap_tiles makes it
// of that of submanifold_map, but row numbers are read from the cells of the table, 32 bytes for each block.
// in: near[N, 8] uint32 (near_blocks), table (coord_hash_insert), order[N] int32 row of each place; dims = {N, CAP, P}, P >= N
//     a multiple of 256
// out: tiled[27 * P] int32: tap t of place p at p / 32 * 864 + t * 32 + p % 32; rows[P] int32, order, -1 at the end;
//      masks[P / 32] uint32   grid: one thread a place
threadgroup int stage[256 * 27];
uint place = thread_position_in_grid.x, lane = thread_index_in_simdgroup, n = uint(dims[0]);
threadgroup int* mine = stage + 27u * thread_index_in_threadgroup;
int row = place < n ? order[place] : -1;
if (row < 0 || row >= dims[0]) row = -1;
for (int tap = 0; tap < 27; tap++) mine[tap] = -1;
if (row >= 0) {
  const device uint4* cells = (const device uint4*)coord_cells(table, uint(dims[1]) - 1u);
  uint4 a = ((const device uint4*)near)[2 * size_t(row)], b = ((const device uint4*)near)[2 * size_t(row) + 1];
  int ex = (a.x >> 31) != 0u ? 0 : 1, ey = (a.y >> 31) != 0u ? 0 : 1, ez = (a.z >> 31) != 0u ? 0 : 1;
  for (int q = 0; q < 8; q++) {
    uint4 four = q < 4 ? a : b;
    uint first = ((q & 3) == 0 ? four.x : (q & 3) == 1 ? four.y : (q & 3) == 2 ? four.z : four.w) & 0x7FFFFFFFu;
    if (first == 0u || first > n) continue;
    int qx = q >> 2, qy = q >> 1 & 1, qz = q & 1;
    for (int half = 0; half < 2; half++) {
      int kx = 2 * qx + half - ex;
      if (kx < 0 || kx > 2) continue;
      uint4 found = cells[2 * size_t(first - 1u) + size_t(half)];
      for (int c = 0; c < 4; c++) {
        uint j = ~(c == 0 ? found.x : c == 1 ? found.y : c == 2 ? found.z : found.w);
        int ky = 2 * qy + (c >> 1) - ey, kz = 2 * qz + (c & 1) - ez;
        if (ky >= 0 && ky < 3 && kz >= 0 && kz < 3 && j < n) mine[(kx * 3 + ky) * 3 + kz] = int(j);
      }
    }
  }
}
uint taps = 0u;
size_t to = size_t(place / 32u) * 864 + size_t(lane);
for (int tap = 0; tap < 27; tap++) {
  int j = mine[tap];
  if (place < uint(dims[2])) tiled[to + size_t(32 * tap)] = j;
  if (simd_any(j >= 0)) taps |= 1u << uint(tap);
}
if (place < uint(dims[2])) {
  rows[place] = row;
  if (lane == 0u) masks[place / 32u] = taps;
}
