// Counts bits (site_bits.h). in: bits[8 * B] uint32, B a multiple of 256
// out: before[B] int32 ones before each 8 words within their 256 times 8; totals[B / 256] int32 ones of each 256 times 8
// grid: one thread 8 words
threadgroup int sums[8];
uint i = thread_position_in_grid.x;
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int count = 0;
for (int part = 0; part < 2; part++) {
  uint4 w = ((const device uint4*)bits)[2 * size_t(i) + part];
  count += int(popcount(w.x)) + int(popcount(w.y)) + int(popcount(w.z)) + int(popcount(w.w));
}
int upto = simd_prefix_inclusive_sum(count);
if (lane == 31) sums[sg] = upto;
threadgroup_barrier(mem_flags::mem_threadgroup);
int start = 0;
for (int s = 0; s < sg; s++) start += sums[s];
before[i] = start + upto - count;
if (lane == 31 && sg == 7) totals[threadgroup_position_in_grid.x] = start + upto;
