// A kernel map in another row order, with the taps of every 32 rows.
// in: nbr[K, M], by row [M, K], int32 (-1: none), order[M] int32 row of each place; dims = {N, M, K, P, G, S, by row}, P >= M a multiple of 32
// out: tiled[K * P] int32, nbr in that order: tap t of place p at p / 32 * G + t * S + p % 32; rows[P] int32, order, -1 at the end; masks[P / 32, words of 32 taps] uint32
// grid: x one thread a place, y one word
uint place = thread_position_in_grid.x;
int word = int(threadgroup_position_in_grid.y);
uint m = uint(dims[1]), places = uint(dims[3]);
int row = place < m ? order[place] : -1;
bool real = row >= 0 && row < dims[1];
int last = min(dims[2] - word * 32, 32);
uint taps = 0u;
size_t base = dims[6] != 0 ? size_t(row) * size_t(dims[2]) : size_t(row), next = dims[6] != 0 ? 1 : size_t(m);
for (int k = 0; k < last; k++) {
  size_t tap = size_t(word * 32 + k);
  int j = real ? nbr[base + tap * next] : -1;
  if (j >= dims[0]) j = -1;
  if (place < places) tiled[size_t(place / 32u) * size_t(dims[4]) + tap * size_t(dims[5]) + size_t(place % 32u)] = j;
  if (simd_any(j >= 0)) taps |= 1u << uint(k);
}
if (place < places) {
  if (word == 0) rows[place] = real ? row : -1;
  if (thread_index_in_simdgroup == 0u) masks[size_t(place / 32u) * size_t((dims[2] + 31) / 32) + size_t(word)] = taps;
}
