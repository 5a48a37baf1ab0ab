// Where each block of 256 places begins in a packed map (packed.h), and which taps it has.
// in: masks[8 * blocks] uint32 (tap_tiles), of at most 32 taps; dims = {blocks}
// out: heads[2 * blocks, or more] int32: where it begins, its taps; total[1] int32: numbers of the packed map.   grid: one threadgroup
threadgroup uint sums[8];
uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
uint blocks = uint(dims[0]), at = (2u * blocks + 31u) / 32u * 32u; // the next one
for (uint first = 0u; first < blocks; first += 256u) {
  uint block = first + t, taps = 0u;
  if (block < blocks)
    for (uint g = 0u; g < 8u; g++) taps |= masks[8u * block + g];
  uint many = 256u * uint(popcount(taps)), upto = simd_prefix_inclusive_sum(many);
  if (lane == 31u) sums[sg] = upto;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint before = at;
  for (uint s = 0u; s < 8u; s++) {
    if (s < sg) before += sums[s];
    at += sums[s];
  }
  if (block < blocks) {
    heads[2u * block] = int(before + upto - many);
    heads[2u * block + 1u] = int(taps);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
if (t == 0u) total[0] = int(at);
