// In which turn tiles of 256 places are computed: those with most taps first, of equal ones the last.
// in: masks[8 * tiles, W] uint32 (tap_tiles); dims = {tiles, at most 1024, W}   out: turns[tiles] int32   grid: one thread a tile
threadgroup uint taps[1024];
uint i = thread_position_in_grid.x, tiles = min(uint(dims[0]), 1024u), words = uint(dims[1]);
for (uint j = thread_index_in_threadgroup; j < tiles; j += 256u) {
  uint many = 0u;
  for (uint w = 0u; w < words; w++) {
    uint any = 0u;
    for (uint g = 0u; g < 8u; g++) any |= masks[size_t(8u * j + g) * size_t(words) + size_t(w)];
    many += popcount(any);
  }
  taps[j] = many;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (i < tiles) {
  uint turn = 0u, mine = taps[i];
  for (uint j = 0u; j < tiles; j++) turn += taps[j] > mine || (taps[j] == mine && j > i) ? 1u : 0u;
  turns[turn] = int(i);
}
