// The map of a set onto itself of 3 x 3 x 3 taps in the order of tiles, from the blocks around each row: as tap_tiles makes it
// of that of submanifold_map, but row numbers are read from the cells of the table, 32 bytes for each block.
// in: near[N, 8] uint32 (near_blocks), table (coord_hash_insert), order[N] int32 row of each place; dims = {N, CAP, P}, P >= N
//     a multiple of 256
// out: tiled[27 * P] int32: tap t of place p at p / 32 * 864 + t * 32 + p % 32; rows[P] int32, order, -1 at the end;
//      masks[P / 32] uint32   grid: one thread a place
// A simdgroup takes 32 places; a lane looks for one neighbour of row after row.
threadgroup int stage[8 * 864];
uint place = thread_position_in_grid.x, lane = thread_index_in_simdgroup, n = uint(dims[0]);
threadgroup int* found = stage + 864u * simdgroup_index_in_threadgroup; // 27 of each place
const device uint* cells = coord_cells(table, uint(dims[1]) - 1u);
int row = place < n ? order[place] : -1;
if (row < 0 || row >= dims[0]) row = -1;
uint word[8]; // of four rows each, eight lanes a row
TILE_UNROLL
for (uint g = 0u; g < 8u; g++) {
  int from = simd_shuffle(row, ushort(4u * g + lane / 8u));
  word[g] = from < 0 ? 0u : near[8 * size_t(from) + size_t(lane & 7u)];
}
int tap = int(min(lane, 26u)), kx = tap / 9, ky = tap / 3 % 3, kz = tap % 3;
int x0 = near_at(kx, 0, 4), x1 = near_at(kx, 1, 4), y0 = near_at(ky, 0, 2), y1 = near_at(ky, 1, 2);
int z0 = near_at(kz, 0, 1), z1 = near_at(kz, 1, 1);
uint taps = 0u;
TILE_UNROLL
for (uint r = 0u; r < 32u; r++) {
  uint odd = uint(ulong(simd_ballot((word[r / 4u] >> 31) != 0u))) >> (8u * (r & 3u));
  int at = ((odd & 1u) != 0u ? x1 : x0) + ((odd & 2u) != 0u ? y1 : y0) + ((odd & 4u) != 0u ? z1 : z0);
  uint first = simd_shuffle(word[r / 4u], ushort(8u * (r & 3u) + uint(at >> 3))) & 0x7FFFFFFFu;
  uint j = first > 0u && first <= n ? ~cells[8 * size_t(first - 1u) + size_t(at & 7)] : 4294967295u;
  if (lane < 27u) found[27u * r + lane] = j < n ? int(j) : -1;
  taps |= uint(ulong(simd_ballot(j < n)));
}
simdgroup_barrier(mem_flags::mem_threadgroup);
if (place < uint(dims[2])) {
  size_t to = size_t(place / 32u) * 864 + size_t(lane);
  for (int k = 0; k < 27; k++) tiled[to + size_t(32 * k)] = found[27 * int(lane) + k];
  rows[place] = row;
  if (lane == 0u) masks[place / 32u] = taps & 0x7FFFFFFu;
}
