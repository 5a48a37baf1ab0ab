// How many of 4096 keys have each digit (digits.h). in: keys[N] uint32; dims = {N, shift of the digit}
// out: counts[G, 128] uint32, of digits 2 w and 2 w + 1 in its lower and upper half   grid: G = ceil(N / 4096) threadgroups
threadgroup int sums[8 * 256];
uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
uint first = 4096u * threadgroup_position_in_grid.x + 512u * sg + lane, n = uint(dims[0]);
uint key[16]; // all on their way at once
for (uint r = 0u; r < 16u; r++) key[r] = first + 32u * r < n ? keys[first + 32u * r] : 0u;
for (uint s = 0u; s < 8u; s++) sums[256u * s + t] = 0;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint r = 0u; r < 16u; r++) {
  bool live = first + 32u * r < n;
  uint digit = key[r] >> uint(dims[1]) & 255u, alike = lanes_alike(digit, live);
  if (live && (alike & ((1u << lane) - 1u)) == 0u) sums[256u * sg + digit] += int(popcount(alike));
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint total = 0u;
for (uint s = 0u; s < 8u; s++) total += uint(sums[256u * s + t]);
uint next = simd_shuffle_xor(total, ushort(1));
if ((t & 1u) == 0u) counts[128u * threadgroup_position_in_grid.x + t / 2u] = total | next << 16;
