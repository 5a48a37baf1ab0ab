// Kernel map of a set onto itself, odd sizes, centred, and the sort keys of its rows.
// in: coords[N, 4] distinct sites (negative batch: padding), table (coord_hash_insert), bit[T + nodes] int32, 0 .. 26:
//     of each tap, and a tree of bits (tap_key.h); dims = {N, CAP, Kx, Ky, Kz, dx, dy, dz, by row, nodes, key without a tap}
// out: nbr[T, N], by row [N, T], int32 row of each tap and row, -1 none; keys[N] uint32 (tap_key.h).
// grid: one thread a row
// All taps of a row in one thread: nothing is scattered. By row, up to 27 taps leave through threadgroup memory.
threadgroup int stage[256 * 27];
uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup, n = uint(dims[0]);
int taps = dims[2] * dims[3] * dims[4];
bool by_row = dims[8] != 0, staged = by_row && taps <= 27;
if (i < n) {
  uint mask = 0u, last = uint(dims[1]) - 1u;
  int site[4];
  load_site(coords, size_t(i), sites_aligned(coords), site);
  int sy = dims[3], sz = dims[4];
  for (int kx = 0; kx < dims[2]; kx++)
    for (int ky = 0; ky < sy; ky++)
      for (int kz = 0; kz < sz; kz++) {
        int tap = (kx * sy + ky) * sz + kz, j = -1;
        long x = long(site[1]) + long(kx - dims[2] / 2) * long(dims[5]);
        long y = long(site[2]) + long(ky - sy / 2) * long(dims[6]);
        long z = long(site[3]) + long(kz - sz / 2) * long(dims[7]);
        bool inside = site[0] >= 0 && x >= -2147483648l && x <= 2147483647l && y >= -2147483648l && y <= 2147483647l;
        if (inside && z >= -2147483648l && z <= 2147483647l)
          j = 2 * tap + 1 == taps ? int(i) : coord_find(coords, table, n, last, site[0], int(x), int(y), int(z));
        if (staged) stage[int(t) * taps + tap] = j;
        else nbr[by_row ? size_t(i) * size_t(taps) + size_t(tap) : size_t(tap) * size_t(n) + size_t(i)] = j;
        if (j >= 0) mask |= 1u << uint(bit[tap]);
      }
  keys[i] = tap_key(mask, bit + taps, dims[9], uint(dims[10]));
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint first = i - t;
if (staged) {
  int many = int(min(256u, n - first)) * taps;
  for (int k = int(t); k < many; k += 256) nbr[size_t(first) * size_t(taps) + size_t(k)] = stage[k];
}
