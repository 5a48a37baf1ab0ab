// Marks every site that kernels reach, a box for each kernel (site_bits.h).
// in: coords[N, 4] int32 (negative batch: padding); boxes[L, 24] int32: forward, Kx, Ky, Kz, sx, sy, sz, px, py, pz,
//     dx, dy, dz, bx, by, bz, lx, ly, lz, Sx, Sy, Sz, cells, first block of 256 cells; dims = {N, L}
// out: bits[8 * blocks] uint32, 0 before; status[8] uint32, 0 before: status[l] becomes 1 if a site of box l lies outside
//     (-2^30, 2^30) or outside the box.   grid: one thread a row
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  int site[4];
  load_site(coords, size_t(i), sites_aligned(coords), site);
  for (int l = 0; l < dims[1] && site[0] >= 0; l++) {
    const device int* d = boxes + 24 * l;
    device atomic_uint* words = (device atomic_uint*)bits + 8 * size_t(d[23]);
    int size[3], stride[3], step[3], bound[3], low[3], span[3], rest[3], start[3], next[3];
    long first[3];
    bool forward = d[0] != 0, lost = false, windows = forward;
    for (int a = 0; a < 3; a++) {
      size[a] = d[1 + a];
      stride[a] = d[4 + a];
      step[a] = d[10 + a];
      bound[a] = d[13 + a];
      low[a] = d[16 + a];
      span[a] = d[19 + a];
      windows = windows && size[a] == stride[a] && step[a] == 1 && d[7 + a] == 0 && bound[a] == 0;
    }
    uint cells = uint(d[22]);
    if (windows) { // K = s, p = 0, d = 1: one site, without long divisions
      uint number = site_number(site[0], floor_quotient(site[1], stride[0]), floor_quotient(site[2], stride[1]),
                                floor_quotient(site[3], stride[2]), low, span, cells);
      lost = number == 4294967295u;
      if (!lost) atomic_fetch_or_explicit(&words[number >> 5], 1u << (number & 31u), memory_order_relaxed);
    } else {
      for (int a = 0; a < 3; a++)
        taps_lead(site[1 + a], stride[a], d[7 + a], step[a], forward, first[a], rest[a], start[a], next[a]);
      long x, y, z;
      for (int kx = start[0]; kx < size[0]; kx += next[0]) {
        if (!tap_leads(first[0], rest[0], kx, stride[0], step[0], forward, bound[0], x)) continue;
        for (int ky = start[1]; ky < size[1]; ky += next[1]) {
          if (!tap_leads(first[1], rest[1], ky, stride[1], step[1], forward, bound[1], y)) continue;
          for (int kz = start[2]; kz < size[2]; kz += next[2]) {
            if (!tap_leads(first[2], rest[2], kz, stride[2], step[2], forward, bound[2], z)) continue;
            uint number = site_number(site[0], x, y, z, low, span, cells);
            if (number == 4294967295u) lost = true;
            else atomic_fetch_or_explicit(&words[number >> 5], 1u << (number & 31u), memory_order_relaxed);
          }
        }
      }
    }
    if (lost) {
      device atomic_uint* flags = (device atomic_uint*)status;
      atomic_fetch_or_explicit(&flags[l], 1u, memory_order_relaxed);
    }
  }
}
