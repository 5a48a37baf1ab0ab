// One pass of a sort by digits: the places of a window in the order of their digit, of equal ones as they were.
// in: keys[N], rows[N] as in digit_counts, totals[chunks * 128] int32 from it (one chunk: not read)
//     dims = {N, shift, bits, first pass, chunks of a window, chunks}
// out: order[N] int32 row of each place   grid: as digit_counts
threadgroup int counts[8 * 128]; // of a simdgroup and digit; then the place of the next such row
threadgroup int whole[8 * 128]; // of the window and digit, an eighth of its chunks each
threadgroup int earlier[8 * 128]; // of the chunks before this one
threadgroup int sums[8];
uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
uint chunk = threadgroup_position_in_grid.x, window = uint(dims[4]), start = chunk / window * window;
digit_steps<STEPS> mine;
mine.load(keys, rows, (chunk * 8u + sg) * uint(32 * STEPS) + lane, uint(dims[0]), dims[3] != 0, dims[1], dims[2]);
uint end = dims[5] == 1 ? 0u : min(start + window, uint(dims[5]));
int all[4], past[4];
for (int d = 0; d < 4; d++) all[d] = past[d] = 0;
for (uint c = start + sg; c < end; c += 8u) {
  int4 here = ((const device int4*)totals)[32 * size_t(c) + size_t(lane)];
  int four[4] = {here.x, here.y, here.z, here.w};
  for (int d = 0; d < 4; d++) {
    all[d] += four[d];
    if (c < chunk) past[d] += four[d];
  }
}
for (uint d = 0u; d < 4u; d++) {
  whole[128u * sg + 4u * lane + d] = all[d];
  earlier[128u * sg + 4u * lane + d] = past[d];
  counts[128u * sg + 4u * lane + d] = 0;
}
simdgroup_barrier(mem_flags::mem_threadgroup);
mine.count(counts + 128u * sg, lane);
threadgroup_barrier(mem_flags::mem_threadgroup);
int many = 0, place = int(start * uint(256 * STEPS));
if (t < 128u) {
  for (uint s = 0u; s < 8u; s++) {
    many += dims[5] == 1 ? counts[128u * s + t] : whole[128u * s + t];
    place += earlier[128u * s + t];
  }
}
int upto = simd_prefix_inclusive_sum(many);
if (lane == 31u) sums[sg] = upto;
threadgroup_barrier(mem_flags::mem_threadgroup);
if (t < 128u) {
  place += upto - many;
  for (uint s = 0u; s < sg; s++) place += sums[s];
  for (uint s = 0u; s < 8u; s++) {
    int here = counts[128u * s + t];
    counts[128u * s + t] = place;
    place += here;
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int r = 0; r < STEPS; r++) {
  uint before = mine.before(r, lane);
  int first = mine.alike[r] != 0u ? counts[128u * sg + mine.digit[r]] : 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (mine.alike[r] != 0u) {
    order[size_t(first) + size_t(before)] = mine.row[r];
    if (before == 0u) counts[128u * sg + mine.digit[r]] = first + int(popcount(mine.alike[r]));
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
