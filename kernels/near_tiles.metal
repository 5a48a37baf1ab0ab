// The map of a set onto itself of 3 x 3 x 3 taps in the order of tiles, from the blocks around each row: as tap_tiles makes it
// of that of submanifold_map, but row numbers are read from the cells of the table, 32 bytes for each block.
// in: near[N, 8] uint32 (near_blocks), table (coord_hash_insert), order[N] int32 row of each place; dims = {N, CAP, P}, P >= N
//     a multiple of 256
// out: tiled[27 * P] int32: tap t of place p at p / 32 * 864 + t * 32 + p % 32; rows[P] int32, order, -1 at the end;
//      masks[P / 32] uint32   grid: one thread a place
// A simdgroup takes 32 places, the rows of four at a time, and a lane one of the eight blocks of a row.
threadgroup int stage[8 * 864];
uint place = thread_position_in_grid.x, lane = thread_index_in_simdgroup, d = lane & 7u, n = uint(dims[0]);
threadgroup int* found = stage + 864u * simdgroup_index_in_threadgroup; // 27 of each place
const device uint4* cells = (const device uint4*)coord_cells(table, uint(dims[1]) - 1u);
int row = place < n ? order[place] : -1;
if (row < 0 || row >= dims[0]) row = -1;
uint word[8]; // all are on their way before the first is needed
for (uint r = 0u; r < 8u; r++) {
  int from = simd_shuffle(row, ushort(4u * r + lane / 8u));
  word[r] = from < 0 ? 0u : near[8 * size_t(from) + size_t(d)];
}
for (uint r = 0u; r < 8u; r++) {
  uint odd = uint(ulong(simd_ballot((word[r] >> 31) != 0u))) >> (lane & 24u), first = word[r] & 0x7FFFFFFFu;
  int ox = int(odd & 1u), oy = int(odd >> 1 & 1u), oz = int(odd >> 2 & 1u);
  int to = 27 * int(4u * r + lane / 8u) + 9 * near_tap(d >> 2, ox) + 3 * near_tap(d >> 1, oy) + near_tap(d, oz);
  uint mine = near_cells(d >> 2, ox, 0xF0u, near_cells(d >> 1, oy, 0xCCu, near_cells(d, oz, 0xAAu, 255u)));
  for (uint h = 0u; h < 2u; h++) { // cells of a lower and of a higher x
    uint here = mine >> (4u * h) & 15u;
    if (here == 0u) continue;
    uint sites[4];
    for (int c = 0; c < 4; c++) sites[c] = 0u;
    if (first > 0u && first <= n) {
      uint4 rows = cells[2 * size_t(first - 1u) + size_t(h)];
      sites[0] = rows.x;
      sites[1] = rows.y;
      sites[2] = rows.z;
      sites[3] = rows.w;
    }
    for (int c = 0; c < 4; c++)
      if ((here >> uint(c) & 1u) != 0u) found[to + int(9u * h) + 3 * (c >> 1) + (c & 1)] = ~sites[c] < n ? int(~sites[c]) : -1;
  }
}
simdgroup_barrier(mem_flags::mem_threadgroup);
uint taps = 0u;
size_t at = size_t(place / 32u) * 864 + size_t(lane);
for (int tap = 0; tap < 27; tap++) {
  int j = found[27 * int(lane) + tap];
  if (place < uint(dims[2])) tiled[at + size_t(32 * tap)] = j;
  if (simd_any(j >= 0)) taps |= 1u << uint(tap);
}
if (place < uint(dims[2])) {
  rows[place] = row;
  if (lane == 0u) masks[place / 32u] = taps;
}
