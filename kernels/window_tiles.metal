// The ordered map of window_rows (tap_tiles.metal): rows by tap, as they were within a tap, those without one last.
// in: window[N] int32, tap[N] int32, ends[(T + 1) * G] int32 inclusive sums of the totals
//     dims = {N, T, G, P}, P >= N a multiple of 256
// out: tiled[P / 32, T, 32] int32 row of the window, -1 none; rows[P] int32, -1 past the last; masks[P / 32] uint32
// grid: G threadgroups, each 2048 rows
threadgroup int starts[64 * 32]; // of 32 rows and a tap
uint group = threadgroup_position_in_grid.x, t = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
int n = dims[0], taps = dims[1], groups = dims[2], places = dims[3];
for (uint r = 0u; r < 8u; r++) {
  uint i = group * 2048u + r * 256u + t;
  int mine = i < uint(n) ? tap[i] : 32, total = 0;
  for (int k = 0; k <= taps; k++) {
    int here = int(popcount(uint(ulong(simd_ballot(mine == k)))));
    if (int(lane) == k) total = here;
  }
  starts[32u * (8u * r + sg) + lane] = total;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (int(t) <= taps) {
  size_t at = size_t(t) * size_t(groups) + group;
  int running = at > 0 ? ends[at - 1] : 0;
  for (uint s = 0u; s < 64u; s++) {
    int here = starts[32u * s + t];
    starts[32u * s + t] = running;
    running += here;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint r = 0u; r < 8u; r++) {
  uint i = group * 2048u + r * 256u + t;
  int mine = i < uint(n) ? tap[i] : 32, place = int(i);
  for (int k = 0; k <= taps; k++) {
    uint alike = uint(ulong(simd_ballot(mine == k)));
    if (mine == k) place = starts[32u * (8u * r + sg) + uint(k)] + int(popcount(alike & ((1u << lane) - 1u)));
  }
  if (place >= 0 && place < places) {
    size_t to = size_t(place / 32) * size_t(32 * taps) + size_t(place % 32);
    for (int k = 0; k < taps; k++) tiled[to + size_t(32 * k)] = mine == k ? window[i] : -1;
    rows[place] = i < uint(n) ? int(i) : -1;
  }
  if (i < uint(places / 32)) {
    uint mask = 0u;
    int first = 32 * int(i);
    for (int k = 0; k < taps; k++) {
      size_t at = size_t(k) * size_t(groups);
      int start = k > 0 ? ends[at - 1] : 0, end = ends[at + size_t(groups) - 1];
      if (start < end && start < first + 32 && end > first) mask |= 1u << uint(k);
    }
    masks[i] = mask;
  }
}
