// Keys in the order of a digit, equal digits as they lie (digits.h), and what goes with them.
// in: keys[N] uint32, rows[N] int32, counts[G, 128] uint32 (digit_counts); dims = {N, shift of the digit, G, rows given}
// out: sorted[N] uint32 keys; order[N] int32, the rows, or the places of the keys where none are given
// grid: G threadgroups
threadgroup int starts[8 * 256];
threadgroup int sums[8];
threadgroup uint held[4096];
uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
uint group = threadgroup_position_in_grid.x, first = 4096u * group + 512u * sg + lane, n = uint(dims[0]);
threadgroup uint* mine = held + 512u * sg + lane;
for (uint r = 0u; r < 16u; r++) mine[32u * r] = first + 32u * r < n ? keys[first + 32u * r] : 0u;
int before = 0, total = 0; // of digit t: in the groups before this one, and in all
for (uint g = 0u; g < uint(dims[2]); g += 8u) {
  uint pair[8];
  for (uint u = 0u; u < 8u; u++) pair[u] = g + u < uint(dims[2]) ? counts[128u * (g + u) + t / 2u] : 0u;
  for (uint u = 0u; u < 8u; u++) {
    int count = int(pair[u] >> (16u * (t & 1u)) & 65535u);
    before += g + u < group ? count : 0;
    total += count;
  }
}
int upto = simd_prefix_inclusive_sum(total);
if (lane == 31u) sums[sg] = upto;
for (uint s = 0u; s < 8u; s++) starts[256u * s + t] = 0;
threadgroup_barrier(mem_flags::mem_threadgroup);
int running = upto - total + before;
for (uint s = 0u; s < sg; s++) running += sums[s];
for (uint r = 0u; r < 16u; r++) {
  bool live = first + 32u * r < n;
  uint digit = mine[32u * r] >> uint(dims[1]) & 255u, alike = lanes_alike(digit, live);
  if (live && (alike & ((1u << lane) - 1u)) == 0u) starts[256u * sg + digit] += int(popcount(alike));
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint s = 0u; s < 8u; s++) {
  int count = starts[256u * s + t];
  starts[256u * s + t] = running;
  running += count;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint r = 0u; r < 16u; r++) {
  uint i = first + 32u * r, key = mine[32u * r], digit = key >> uint(dims[1]) & 255u;
  uint alike = lanes_alike(digit, i < n), rank = popcount(alike & ((1u << lane) - 1u));
  int place = i < n ? starts[256u * sg + digit] + int(rank) : -1;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (place >= 0 && place < dims[0]) {
    sorted[place] = key;
    order[place] = dims[3] != 0 ? rows[i] : int(i);
    if (rank == 0u) starts[256u * sg + digit] += int(popcount(alike));
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
