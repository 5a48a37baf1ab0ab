// Kernel map from a set to sites marked by site_bits, from the side of these.
// in: coords[N, 4] int32 (negative batch: padding), bits, before, ends (site_bits.h)
//     dims = {N, forward, Kx, Ky, Kz, sx, sy, sz, px, py, pz, dx, dy, dz, bx, by, bz, lx, ly, lz, Sx, Sy, Sz, cells, M, by row}
// out: source[T, M], by row [M, T], int32 row of coords of each tap and marked site, -1 before. Sites from M on are left out.
// grid: one thread a row
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  int site[4], size[3], stride[3], step[3], bound[3], low[3], span[3], rest[3], start[3], next[3];
  long first[3];
  load_site(coords, size_t(i), sites_aligned(coords), site);
  bool forward = dims[1] != 0, windows = forward;
  for (int a = 0; a < 3; a++) {
    size[a] = dims[2 + a];
    stride[a] = dims[5 + a];
    step[a] = dims[11 + a];
    bound[a] = dims[14 + a];
    low[a] = dims[17 + a];
    span[a] = dims[20 + a];
    windows = windows && size[a] == stride[a] && step[a] == 1 && dims[8 + a] == 0 && bound[a] == 0;
  }
  uint cells = uint(dims[23]);
  int m = dims[24];
  // From a tap to the next, and from a site to the next.
  size_t along = dims[25] != 0 ? 1 : size_t(m), down = dims[25] != 0 ? size_t(size[0] * size[1] * size[2]) : 1;
  if (windows && site[0] >= 0) { // K = s, p = 0, d = 1: one site, without long divisions
    int v[3], tap = 0;
    for (int a = 0; a < 3; a++) {
      v[a] = floor_quotient(site[1 + a], stride[a]);
      tap = tap * stride[a] + site[1 + a] - v[a] * stride[a];
    }
    uint number = site_number(site[0], v[0], v[1], v[2], low, span, cells);
    int place = number == 4294967295u ? -1 : bit_rank(bits, before, ends, number);
    if (place >= 0 && place < m) source[size_t(tap) * along + size_t(place) * down] = int(i);
  } else if (site[0] >= 0) {
    for (int a = 0; a < 3; a++)
        taps_lead(site[1 + a], stride[a], dims[8 + a], step[a], forward, first[a], rest[a], start[a], next[a]);
    long x, y, z;
    for (int kx = start[0]; kx < size[0]; kx += next[0]) {
      if (!tap_leads(first[0], rest[0], kx, stride[0], step[0], forward, bound[0], x)) continue;
      for (int ky = start[1]; ky < size[1]; ky += next[1]) {
        if (!tap_leads(first[1], rest[1], ky, stride[1], step[1], forward, bound[1], y)) continue;
        for (int kz = start[2]; kz < size[2]; kz += next[2]) {
          if (!tap_leads(first[2], rest[2], kz, stride[2], step[2], forward, bound[2], z)) continue;
          uint number = site_number(site[0], x, y, z, low, span, cells);
          int place = number == 4294967295u ? -1 : bit_rank(bits, before, ends, number);
          size_t tap = size_t((kx * size[1] + ky) * size[2] + kz);
          if (place >= 0 && place < m) source[tap * along + size_t(place) * down] = int(i);
        }
      }
    }
  }
}
