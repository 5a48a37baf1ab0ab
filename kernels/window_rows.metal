// The input side of windows that tile the lattice (K = s, p = 0, d = 1): each row has one tap at most.
// in: coords[N, 4] int32 (negative batch: padding), bits, before, ends of the windows (site_bits.h)
//     dims = {N, sx, sy, sz, lx, ly, lz, Sx, Sy, Sz, cells, M, G}; T = sx * sy * sz at most 31
// out: window[N] int32 row of the window, -1 none or from M on; tap[N] int32, T where there is none;
//      totals[(T + 1) * G] int32: rows of each tap in 2048 rows, tap by tap
// grid: G threadgroups, each 2048 rows
threadgroup int counts[8 * 32];
uint group = threadgroup_position_in_grid.x, t = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
int low[3], span[3], stride[3], taps = 1;
for (int a = 0; a < 3; a++) {
  stride[a] = dims[1 + a];
  low[a] = dims[4 + a];
  span[a] = dims[7 + a];
  taps *= stride[a];
}
uint n = uint(dims[0]), cells = uint(dims[10]);
int total = 0; // of tap `lane` in this simdgroup
for (uint r = 0u; r < 8u; r++) {
  uint i = group * 2048u + r * 256u + t;
  int mine = 32, row = -1;
  if (i < n) {
    int v[3], site[4];
    load_site(coords, size_t(i), sites_aligned(coords), site);
    mine = 0;
    for (int a = 0; a < 3; a++) {
      v[a] = floor_quotient(site[1 + a], stride[a]);
      mine = mine * stride[a] + site[1 + a] - v[a] * stride[a];
    }
    uint number = site_number(site[0], v[0], v[1], v[2], low, span, cells);
    if (number != 4294967295u) row = bit_rank(bits, before, ends, number);
    if (row >= dims[11]) row = -1;
    if (row < 0) mine = taps;
    window[i] = row;
    tap[i] = mine;
  }
  for (int k = 0; k <= taps; k++) {
    int here = int(popcount(uint(ulong(simd_ballot(mine == k)))));
    if (int(lane) == k) total += here;
  }
}
counts[32u * sg + lane] = total;
threadgroup_barrier(mem_flags::mem_threadgroup);
if (int(t) <= taps) {
  int sum = 0;
  for (uint s = 0u; s < 8u; s++) sum += counts[32u * s + t];
  totals[size_t(t) * size_t(dims[12]) + group] = sum;
}
