// A kernel map in another row order, with the taps of every 32 rows.
// in: nbr[K, M], by row [M, K], int32 (-1: none), order[M] int32 row of each place; dims = {N, M, K, P, G, S, by row}, P >= M a multiple of 256
// out: tiled[K * P] int32, nbr in that order: tap t of place p at p / 32 * G + t * S + p % 32; rows[P] int32, order, -1 at the end; masks[P / 32, words of 32 taps] uint32
// grid: x one thread a place, y one word
// By row a simdgroup reads the rows of its places one after the other, each as one stretch, and turns them round.
threadgroup int turned[8 * 1024];
uint place = thread_position_in_grid.x, lane = thread_index_in_simdgroup;
int word = int(threadgroup_position_in_grid.y);
uint m = uint(dims[1]), places = uint(dims[3]);
int row = place < m ? order[place] : -1;
if (row < 0 || row >= dims[1]) row = -1;
int last = min(dims[2] - word * 32, 32);
uint taps = 0u;
bool by_row = dims[6] != 0;
threadgroup int* mine = turned + 1024u * simdgroup_index_in_threadgroup;
if (by_row) {
  for (uint r = 0u; r < 32u; r++) { // shifted by their number, so that columns lie in different banks as well
    int from = simd_shuffle(row, ushort(r));
    if (from >= 0 && int(lane) < last)
      mine[32u * r + ((lane + r) & 31u)] = nbr[size_t(from) * size_t(dims[2]) + size_t(word * 32) + size_t(lane)];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}
for (int k = 0; k < last; k++) {
  size_t tap = size_t(word * 32 + k);
  int j = -1;
  if (row >= 0) j = by_row ? mine[32u * lane + ((uint(k) + lane) & 31u)] : nbr[tap * size_t(m) + size_t(row)];
  if (j >= dims[0]) j = -1;
  if (place < places) tiled[size_t(place / 32u) * size_t(dims[4]) + tap * size_t(dims[5]) + size_t(place % 32u)] = j;
  if (simd_any(j >= 0)) taps |= 1u << uint(k);
}
if (place < places) {
  if (word == 0) rows[place] = row;
  if (lane == 0u) masks[size_t(place / 32u) * size_t((dims[2] + 31) / 32) + size_t(word)] = taps;
}
