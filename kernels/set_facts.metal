// Sums of bit_counts of L sets, and what the host reads of them and of the set that they follow from.
// in: table uint32 (coord_hash_insert), totals[G] int32, outside[8] uint32 (status of site_bits)
//     dims = {L, 4 times: first, number of its totals, 0 past the last; where the table's status begins, in 8s}
// out: ends[>= G] int32 inclusive sums of the totals of a set
//     facts[9 + 2 L] uint32: status[0 .. 8]; of each set its sites, then 1 if one lay outside its box
// grid: L threadgroups of 256 threads, L at least 1; a thread takes a run
threadgroup int sums[8];
int l = int(threadgroup_position_in_grid.x), t = int(thread_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int start = dims[1 + 2 * l], size = dims[2 + 2 * l];
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
  facts[9 + 2 * l] = uint(running);
  facts[10 + 2 * l] = outside[l];
}
const device uint* status = table + 8 * size_t(dims[9]);
if (l == 0 && t < 9) facts[t] = status[t];
