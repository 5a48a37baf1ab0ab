// How many rows have each tap of the windows that tile the lattice (window_rows).
// in: tap[N] int32, T at most 31 where there is none; dims = {N, T, G}
// out: totals[(T + 1) * G] int32: of 2048 rows, tap by tap   grid: G threadgroups, each 2048 rows
threadgroup int counts[8 * 32];
uint group = threadgroup_position_in_grid.x, t = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
int taps = dims[1], total = 0; // of tap `lane` in this simdgroup
for (uint r = 0u; r < 8u; r++) {
  uint i = group * 2048u + r * 256u + t;
  int mine = i < uint(dims[0]) ? tap[i] : 32;
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
  totals[size_t(t) * size_t(dims[2]) + group] = sum;
}
