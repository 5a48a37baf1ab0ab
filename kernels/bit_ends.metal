// Sums of bit_counts, of each of L sets. in: totals[G] int32, status[8] uint32 (site_bits)
//     dims = {L, L times: first, number of its totals}
// out: ends[>= G] int32 inclusive sums of the totals of a set; found[2 * L] int32: the sum, and status[l].
// grid: one threadgroup of 256 threads a set; a thread takes a run
threadgroup int sums[8];
int l = int(threadgroup_position_in_grid.x), t = int(thread_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int start = dims[1 + 2 * l], count = dims[2 + 2 * l];
int run = (count + 255) / 256, first = t * run, last = min(first + run, count);
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
  found[2 * l] = running;
  found[2 * l + 1] = int(status[l]);
}
