// Sums of bit_counts. in: totals[G] int32, status[8] uint32 (site_bits); dims = {first, number of totals}
// out: ends[>= G] int32 inclusive sums of these totals; found[2] int32: their sum, and status[0].
// grid: one threadgroup of 256 threads; a thread takes a run
threadgroup int sums[8];
int t = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
int sg = int(simdgroup_index_in_threadgroup), start = dims[0], size = dims[1];
int run = (size + 255) / 256, first = t * run, last = min(first + run, size);
int mine = 0;
for (int g = first; g < last; g++) mine += totals[start + g];
int upto = simd_prefix_inclusive_sum(mine);
if (lane == 31) sums[sg] = upto;
threadgroup_barrier(mem_flags::mem_threadgroup);
int running = upto - mine;
for (int s = 0; s < sg; s++) running += sums[s];
for (int g = first; g < last; g++) {
  running += totals[start + g];
  ends[start + g] = running;
}
if (t == 255) {
  found[0] = running;
  found[1] = int(status[0]);
}
