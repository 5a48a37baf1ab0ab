// Kernel map of a marked set onto itself, rows in the order of their numbers (site_bits.h), odd sizes, centred, and the
// sort keys of its rows.
// in: coords[N, 4] sites (negative batch: padding), bits, before, ends, bit[T + nodes] int32, 0 .. 26: of each
//     tap, and a tree of bits (tap_key.h)
//     dims = {N, Kx, Ky, Kz, dx, dy, dz, lx, ly, lz, Sx, Sy, Sz, cells, by row, nodes, key without a tap}
// out: nbr[T, N], by row [N, T], int32 row of each tap and row, -1 none; keys[N] uint32 (tap_key.h).
// grid: one thread a row. By row, up to 27 taps leave through threadgroup memory.
threadgroup int stage[256 * 27];
uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup, n = uint(dims[0]);
int taps = dims[1] * dims[2] * dims[3];
bool by_row = dims[14] != 0, staged = by_row && taps <= 27;
if (i < n) {
  uint mask = 0u;
  int site[4], low[3], span[3];
  load_site(coords, size_t(i), sites_aligned(coords), site);
  for (int a = 0; a < 3; a++) {
    low[a] = dims[7 + a];
    span[a] = dims[10 + a];
  }
  for (int kx = 0; kx < dims[1]; kx++)
    for (int ky = 0; ky < dims[2]; ky++)
      for (int kz = 0; kz < dims[3]; kz++) {
        int tap = (kx * dims[2] + ky) * dims[3] + kz, j = -1;
        long x = long(site[1]) + long(kx - dims[1] / 2) * long(dims[4]);
        long y = long(site[2]) + long(ky - dims[2] / 2) * long(dims[5]);
        long z = long(site[3]) + long(kz - dims[3] / 2) * long(dims[6]);
        if (2 * tap + 1 == taps) j = site[0] >= 0 ? int(i) : -1;
        else {
          uint number = site_number(site[0], x, y, z, low, span, uint(dims[13]));
          if (number != 4294967295u) j = bit_rank(bits, before, ends, number);
        }
        if (j >= dims[0]) j = -1;
        if (staged) stage[int(t) * taps + tap] = j;
        else nbr[by_row ? size_t(i) * size_t(taps) + size_t(tap) : size_t(tap) * size_t(n) + size_t(i)] = j;
        if (j >= 0) mask |= 1u << uint(bit[tap]);
      }
  keys[i] = tap_key(mask, bit + taps, dims[15], uint(dims[16]));
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint first = i - t;
if (staged) {
  int many = int(min(256u, n - first)) * taps;
  for (int k = int(t); k < many; k += 256) nbr[size_t(first) * size_t(taps) + size_t(k)] = stage[k];
}
