// Kernel map from a set to sites marked by site_bits, from the side of these.
// in: coords[N, 4] int32 (negative batch: padding), bits, before, ends (site_bits.h)
//     dims = {N, forward, Kx, Ky, Kz, sx, sy, sz, px, py, pz, dx, dy, dz, bx, by, bz, lx, ly, lz, Sx, Sy, Sz, cells, M}
// out: source[T, M] int32 row of coords of each tap and marked site, -1 before. Sites from M on are left out.
// grid: one thread a row
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  int site[4], low[3], span[3], rest[3];
  long first[3];
  for (int a = 0; a < 4; a++) site[a] = coords[4 * size_t(i) + a];
  for (int a = 0; a < 3; a++) {
    low[a] = dims[17 + a];
    span[a] = dims[20 + a];
    taps_lead(site[1 + a], dims[5 + a], dims[8 + a], dims[1] != 0, first[a], rest[a]);
  }
  bool forward = dims[1] != 0;
  size_t m = size_t(dims[24]);
  long x, y, z;
  for (int kx = 0; kx < dims[2] && site[0] >= 0; kx++) {
    if (!tap_leads(first[0], rest[0], kx, dims[5], dims[11], forward, dims[14], x)) continue;
    for (int ky = 0; ky < dims[3]; ky++) {
      if (!tap_leads(first[1], rest[1], ky, dims[6], dims[12], forward, dims[15], y)) continue;
      for (int kz = 0; kz < dims[4]; kz++) {
        if (!tap_leads(first[2], rest[2], kz, dims[7], dims[13], forward, dims[16], z)) continue;
        uint number = site_number(site[0], x, y, z, low, span, uint(dims[23]));
        int place = number == 4294967295u ? -1 : bit_rank(bits, before, ends, number);
        if (place >= 0 && place < dims[24]) {
          size_t tap = size_t((kx * dims[3] + ky) * dims[4] + kz);
          source[tap * m + size_t(place)] = int(i);
        }
      }
    }
  }
}
