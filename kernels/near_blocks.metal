// The blocks of 2 x 2 x 2 sites (coord_hash.h) in which the 27 neighbours of each row lie, and the sort key of its taps: what
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
  // Of an even coordinate the neighbours are the odd site of the block before and both of its own.
  int ex = 1 - (site[1] & 1), ey = 1 - (site[2] & 1), ez = 1 - (site[3] & 1);
  int x = coord_half(site[1]) - ex, y = coord_half(site[2]) - ey, z = coord_half(site[3]) - ez;
  uint hash = coord_hash(site[0], x, y, z), entry = table[hash & last];
  ulong cube = 0ul; // which of the 4 x 4 x 4 sites of the eight blocks there are
  const device uint4* cells = (const device uint4*)coord_cells(table, last);
  for (int q = 0; q < 8; q++) {
    int qx = q >> 2, qy = q >> 1 & 1, qz = q & 1, r = q + 1; // the next lookup is on its way during this one
    uint next = coord_hash(site[0], x + (r >> 2), y + (r >> 1 & 1), z + (r & 1)), after = r < 8 ? table[next & last] : 0u;
    int first = coord_block(coords, table, n, last, hash, entry, site[0], x + qx, y + qy, z + qz);
    hash = next;
    entry = after;
    if (first >= 0) {
      uint4 a = cells[2 * size_t(first)], b = cells[2 * size_t(first) + 1];
      uint low = uint(~a.x < n) | uint(~a.y < n) << 1 | uint(~a.z < n) << 4 | uint(~a.w < n) << 5;
      uint high = uint(~b.x < n) | uint(~b.y < n) << 1 | uint(~b.z < n) << 4 | uint(~b.w < n) << 5;
      cube |= ulong(low | high << 16) << uint(32 * qx + 8 * qy + 2 * qz);
    }
    bool odd = q == 0 ? ex == 0 : q == 1 ? ey == 0 : q == 2 && ez == 0;
    stage[9u * t + uint(q)] = uint(first + 1) | (odd ? 0x80000000u : 0u);
  }
  cube >>= uint(16 * ex + 4 * ey + ez);
  uint mask = 0u;
  for (int kx = 0; kx < 3; kx++) {
    uint plane = uint(cube >> uint(16 * kx));
    mask |= ((plane & 7u) | (plane >> 1 & 56u) | (plane >> 2 & 448u)) << uint(9 * kx);
  }
  keys[i] = tap_key(mask, bit + 27, dims[2], uint(dims[3]));
} else {
  for (uint q = 0u; q < 8u; q++) stage[9u * t + q] = 0u;
  if (i < n) keys[i] = uint(dims[3]);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint start = i - t, many = start < n ? min(256u, n - start) * 8u : 0u;
for (uint k = t; k < many; k += 256u) near[8 * size_t(start) + size_t(k)] = stage[9u * (k / 8u) + k % 8u];
