// Places of each digit in every 256 STEPS: what digit_places orders by.
// in: keys[N] uint32, rows[N] int32 row of each place (first pass: not read, place i is row i)
//     dims = {N, shift, bits, first pass}; the digit is `bits` (at most 7) bits of the row's key from `shift` on
// out: totals[chunks * 128] int32   grid: a threadgroup of 256 threads for each chunk of 256 STEPS places
threadgroup int counts[8 * 128];
uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
uint chunk = threadgroup_position_in_grid.x;
digit_steps<STEPS> mine;
mine.load(keys, rows, (chunk * 8u + sg) * uint(32 * STEPS) + lane, uint(dims[0]), dims[3] != 0, dims[1], dims[2]);
for (uint k = t; k < 1024u; k += 256u) counts[k] = 0;
threadgroup_barrier(mem_flags::mem_threadgroup);
mine.count(counts + 128u * sg, lane);
threadgroup_barrier(mem_flags::mem_threadgroup);
if (t < 128u) {
  int sum = 0;
  for (uint s = 0u; s < 8u; s++) sum += counts[128u * s + t];
  totals[size_t(chunk) * 128 + size_t(t)] = sum;
}
