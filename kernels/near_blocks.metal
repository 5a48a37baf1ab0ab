// The blocks of 2 x 2 x 2 sites in which the 27 neighbours of each row lie (near.h), and the sort key of its taps: what
// near_tiles makes the map of a set onto itself from.
// in: coords[N, 4] distinct sites (negative batch: padding), table (coord_hash_insert), bit[27 + nodes] int32: 0 .. 26, and a
//     tree of bits (tap_key.h); dims = {N, CAP, nodes, key without a tap}
// out: near[N, 8] uint32: 1 + the row that stands for a block, 0 where there is none; of the first three the highest bit is set
//      where x, y, z is odd; keys[N] uint32 (tap_key.h)   grid: one thread a row
threadgroup uint stage[256 * 9]; // in rows of nine, so that those of a simdgroup lie in different banks
uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup, n = uint(dims[0]), last = uint(dims[1]) - 1u;
int site[4];
for (int a = 0; a < 4; a++) site[a] = -1;
if (i < n) load_site(coords, size_t(i), sites_aligned(coords), site);
if (site[0] >= 0) {
  int x = coord_half(site[1]), y = coord_half(site[2]), z = coord_half(site[3]);
  int ox = site[1] & 1, oy = site[2] & 1, oz = site[3] & 1;
  uint sites[2]; // of lower and of higher dx
  sites[0] = sites[1] = 0u;
  const device uint* behind = coord_cells(table, last);
  const device uint4* cells = (const device uint4*)behind;
  TILE_UNROLL
  for (int d = 0; d < 8; d++) {
    int dx = d < 4 ? 0 : 2 * ox - 1, dy = (d & 2) == 0 ? 0 : 2 * oy - 1, dz = (d & 1) == 0 ? 0 : 2 * oz - 1;
    uint hash = coord_hash(site[0], x + dx, y + dy, z + dz);
    int first = coord_block(coords, table, n, last, hash, site[0], x + dx, y + dy, z + dz);
    if (first >= 0) {
      uint there = 0u;
      if (d < 4 || ox != 0) {
        uint4 row = cells[2 * size_t(first)];
        there = min(row.x, 1u) | min(row.y, 1u) << 1 | min(row.z, 1u) << 4 | min(row.w, 1u) << 5;
      }
      if (d < 4 || ox == 0) {
        uint4 row = cells[2 * size_t(first) + 1];
        there |= min(row.x, 1u) << 16 | min(row.y, 1u) << 17 | min(row.z, 1u) << 20 | min(row.w, 1u) << 21;
      }
      sites[d / 4] |= there << uint(4 * (d & 2) + 2 * (d & 1));
    }
    int odd = d == 0 ? ox : d == 1 ? oy : d == 2 ? oz : 0;
    stage[9u * t + uint(d)] = uint(first + 1) | uint(odd) << 31;
  }
  keys[i] = tap_key(near_taps(ulong(sites[1]) << 32 | ulong(sites[0]), ox, oy, oz), bit + 27, dims[2], uint(dims[3]));
} else {
  for (uint d = 0u; d < 8u; d++) stage[9u * t + d] = 0u;
  if (i < n) keys[i] = uint(dims[3]);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint start = i - t, many = start < n ? min(256u, n - start) * 8u : 0u;
for (uint k = t; k < many; k += 256u) near[8 * size_t(start) + size_t(k)] = stage[9u * (k / 8u) + k % 8u];
