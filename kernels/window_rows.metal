// Which window of those that tile the lattice (K = s, p = 0, d = 1) each row lies in, and where there; and of the first M
// windows, rows as they are, what tap_tiles.metal makes besides numbers: all taps.
// in: coords[N, 4] int32 (negative batch: padding), bits, before, ends of the windows (site_bits.h)
//     dims = {N, sx, sy, sz, lx, ly, lz, Sx, Sy, Sz, cells, M, P}; P >= M a multiple of 256, T = sx * sy * sz at most 31
// out: window[N] int32 row of the window, -1 none or from M on; tap[N] int32, T where there is none
//     rows[P] int32, -1 from M on; masks[P / 32] uint32   grid: one thread a row, and one a place
uint i = thread_position_in_grid.x;
int low[3], span[3], stride[3], taps = 1;
for (int a = 0; a < 3; a++) {
  stride[a] = dims[1 + a];
  low[a] = dims[4 + a];
  span[a] = dims[7 + a];
  taps *= stride[a];
}
int m = dims[11];
if (i < uint(dims[0])) {
  int v[3], site[4], mine = 0, row = -1;
  load_site(coords, size_t(i), sites_aligned(coords), site);
  for (int a = 0; a < 3; a++) {
    v[a] = floor_quotient(site[1 + a], stride[a]);
    mine = mine * stride[a] + site[1 + a] - v[a] * stride[a];
  }
  uint number = site_number(site[0], v[0], v[1], v[2], low, span, uint(dims[10]));
  if (number != 4294967295u) row = bit_rank(bits, before, ends, number);
  bool there = row >= 0 && row < m;
  window[i] = there ? row : -1;
  tap[i] = there ? mine : taps;
}
if (i < uint(dims[12])) rows[i] = i < uint(m) ? int(i) : -1;
if (i < uint(dims[12]) / 32u) masks[i] = 32u * i < uint(m) ? (1u << uint(taps)) - 1u : 0u;
