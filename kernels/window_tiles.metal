// The ordered map of window_rows: rows by tap, as they were within a tap, those without one last; the rows of each tap start
// at a multiple of 256 places, so that these have one tap (TapTiles.alone).
// in: window[N] int32 row of the window, -1 none; tap[N] int32, ends[(T + 1) * G] int32 inclusive sums of the totals
//     dims = {N, T, G, P}, P a multiple of 256, at least N and 256 (T + 1) without what is left of N by 256
// out: tiled[P] int32 row of the window, -1 none; rows[P] int32, -1 where there is none; masks[P / 32] uint32
// grid: G threadgroups, each 2048 rows
threadgroup int starts[64 * 32]; // of 32 rows and a tap
threadgroup int first[33]; // place of each tap, and the one after its last
threadgroup int behind[33];
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
  int before = 0, start = 0, end = 0; // rows of the taps before; places of this one
  for (int k = 0; k <= int(t); k++) {
    int upto = ends[size_t(k + 1) * size_t(groups) - 1];
    start = (end + 255) / 256 * 256;
    end = start + upto - before;
    if (k < int(t)) before = upto;
  }
  first[t] = start;
  behind[t] = end;
  size_t at = size_t(t) * size_t(groups) + group;
  int running = start + (group > 0u ? ends[at - 1] - before : 0);
  for (uint s = 0u; s < 64u; s++) {
    int here = starts[32u * s + t];
    starts[32u * s + t] = running;
    running += here;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint r = 0u; r < 8u; r++) {
  uint i = group * 2048u + r * 256u + t;
  int mine = i < uint(n) ? tap[i] : 32, place = -1;
  for (int k = 0; k <= taps; k++) {
    uint alike = uint(ulong(simd_ballot(mine == k)));
    if (mine == k) place = starts[32u * (8u * r + sg) + uint(k)] + int(popcount(alike & ((1u << lane) - 1u)));
  }
  if (place >= 0) {
    tiled[place] = window[i];
    rows[place] = int(i);
  }
  if (i < uint(places / 32)) {
    uint mask = 0u;
    for (int k = 0; k < taps; k++)
      if (first[k] <= 32 * int(i) && behind[k] > 32 * int(i)) mask |= 1u << uint(k);
    masks[i] = mask;
  }
}
if (group == 0u) { // what no row takes
  for (int k = 0; k <= taps; k++) {
    int next = k < taps ? first[k + 1] : places;
    for (int place = behind[k] + int(t); place < next; place += 256) tiled[place] = rows[place] = -1;
  }
}
