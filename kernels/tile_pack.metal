// A map in tiles, packed (packed.h).
// in: nbr[K * P] int32 (tap_tiles), heads[2 * blocks, or more] int32 (tile_starts); dims = {blocks, G, S (of tap_tiles), numbers of the packed map}
// out: packed[numbers] int32.   grid: a threadgroup of 256 threads for each block
uint t = thread_index_in_threadgroup, block = threadgroup_position_in_grid.x, blocks = uint(dims[0]), many = uint(dims[3]);
if (t < 2u) packed[2u * block + t] = heads[2u * block + t];
if (block == 0u && 2u * blocks + t < (2u * blocks + 31u) / 32u * 32u) packed[2u * blocks + t] = 0;
uint taps = uint(heads[2u * block + 1u]), at = uint(heads[2u * block]) + t;
size_t from = size_t(8u * block + t / 32u) * size_t(dims[1]) + size_t(t % 32u);
for (uint left = taps; left != 0u; left &= left - 1u) {
  uint tap = uint(popcount((left & (0u - left)) - 1u));
  if (at < many) packed[at] = nbr[from + size_t(tap) * size_t(dims[2])];
  at += 256u;
}
