// Marks every site that a kernel reaches (site_bits.h).
// in: coords[N, 4] int32 (negative batch: padding)
//     dims = {N, forward, Kx, Ky, Kz, sx, sy, sz, px, py, pz, dx, dy, dz, bx, by, bz, lx, ly, lz, Sx, Sy, Sz, cells}
// out: bits[ceil(cells / 256) * 8] uint32, 0 before; status[8] uint32, 0 before: status[0] becomes 1 if a site lies outside
//     (-2^30, 2^30) or outside the box.   grid: one thread a row
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
  bool forward = dims[1] != 0, lost = false;
  long x, y, z;
  for (int kx = 0; kx < dims[2] && site[0] >= 0; kx++) {
    if (!tap_leads(first[0], rest[0], kx, dims[5], dims[11], forward, dims[14], x)) continue;
    for (int ky = 0; ky < dims[3]; ky++) {
      if (!tap_leads(first[1], rest[1], ky, dims[6], dims[12], forward, dims[15], y)) continue;
      for (int kz = 0; kz < dims[4]; kz++) {
        if (!tap_leads(first[2], rest[2], kz, dims[7], dims[13], forward, dims[16], z)) continue;
        uint number = site_number(site[0], x, y, z, low, span, uint(dims[23]));
        if (number == 4294967295u) lost = true;
        else {
          device atomic_uint* words = (device atomic_uint*)bits;
          atomic_fetch_or_explicit(&words[number >> 5], 1u << (number & 31u), memory_order_relaxed);
        }
      }
    }
  }
  if (lost) {
    device atomic_uint* flags = (device atomic_uint*)status;
    atomic_fetch_or_explicit(&flags[0], 1u, memory_order_relaxed);
  }
}
