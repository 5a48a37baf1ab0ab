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
  int ox = site[1] & 1, oy = site[2] & 1, oz = site[3] & 1;
  uint hash = coord_hash(site[0], coord_half(site[1]), coord_half(site[2]), coord_half(site[3])), entry = table[hash & last];
  ulong cube = 0ul; // which of the 4 x 4 x 4 sites of the eight blocks there are
  const device uint4* cells = (const device uint4*)coord_cells(table, last);
  for (uint d = 0u; d < 8u; d++) {
    uint e = d + 1u; // the next lookup is on its way during this one
    uint next = coord_hash(site[0], near_block(site[1], e >> 2), near_block(site[2], e >> 1), near_block(site[3], e));
    uint after = e < 8u ? table[next & last] : 0u;
    int x = near_block(site[1], d >> 2), y = near_block(site[2], d >> 1), z = near_block(site[3], d);
    int first = coord_block(coords, table, n, last, hash, entry, site[0], x, y, z);
    hash = next;
    entry = after;
    if (first >= 0) {
      uint there = 0u;
      if (d < 4u || ox != 0) {
        uint4 row = cells[2 * size_t(first)];
        there = uint(~row.x < n) | uint(~row.y < n) << 1 | uint(~row.z < n) << 4 | uint(~row.w < n) << 5;
      }
      if (d < 4u || ox == 0) {
        uint4 row = cells[2 * size_t(first) + 1];
        there |= uint(~row.x < n) << 16 | uint(~row.y < n) << 17 | uint(~row.z < n) << 20 | uint(~row.w < n) << 21;
      }
      // Along an axis the four sites begin with the own block where the coordinate is odd.
      int qx = (int(d >> 2) ^ ox) ^ 1, qy = (int(d >> 1 & 1u) ^ oy) ^ 1, qz = (int(d & 1u) ^ oz) ^ 1;
      cube |= ulong(there) << uint(32 * qx + 8 * qy + 2 * qz);
    }
    int odd = d == 0u ? ox : d == 1u ? oy : d == 2u ? oz : 0;
    stage[9u * t + d] = uint(first + 1) | uint(odd) << 31;
  }
  cube >>= uint(16 * (1 - ox) + 4 * (1 - oy) + 1 - oz);
  uint mask = 0u;
  for (int kx = 0; kx < 3; kx++) {
    uint plane = uint(cube >> uint(16 * kx));
    mask |= ((plane & 7u) | (plane >> 1 & 56u) | (plane >> 2 & 448u)) << uint(9 * kx);
  }
  keys[i] = tap_key(mask, bit + 27, dims[2], uint(dims[3]));
} else {
  for (uint d = 0u; d < 8u; d++) stage[9u * t + d] = 0u;
  if (i < n) keys[i] = uint(dims[3]);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint start = i - t, many = start < n ? min(256u, n - start) * 8u : 0u;
for (uint k = t; k < many; k += 256u) near[8 * size_t(start) + size_t(k)] = stage[9u * (k / 8u) + k % 8u];
