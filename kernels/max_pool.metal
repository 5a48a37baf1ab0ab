// Maximum over the taps of each output, and the first tap that attains it; NaN wins over numbers.
// in: x[N, C] T, nbr[K, M] int32 (-1: none); dims = {N, C, K, M, winner wanted}
// out: y[M, C] T, 0 where there is none; winner[M, C] int32 tap, -1 where there is none.   grid: rows.h
uint o = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint lane = thread_index_in_simdgroup, c = threadgroup_position_in_grid.y * 32u + lane;
uint m = uint(dims[3]), channels = uint(dims[1]);
bool mine = o < m && c < channels;
float best = 0.0f;
int tap = -1;
for (int start = 0; start < dims[2]; start += 32) { // the lanes read the rows of 32 taps at once
  int at = start + int(lane), last = min(dims[2] - start, 32);
  int row = o < m && at < dims[2] ? nbr[size_t(at) * m + o] : -1;
  for (int t = 0; t < last; t += 8) { // eight reads are on their way at once
    float value[8];
    bool there[8];
    for (int u = 0; u < 8; u++) { // past the last tap the row is -1
      int j = simd_shuffle(row, ushort(t + u));
      there[u] = mine && row_exists(j, dims[0]);
      value[u] = there[u] ? float(x[size_t(j) * channels + c]) : 0.0f;
    }
    for (int u = 0; u < 8; u++)
      if (there[u] && (tap < 0 || exceeds(value[u], best))) {
        best = value[u];
        tap = start + t + u;
      }
  }
}
if (mine) {
  y[size_t(o) * channels + c] = T(best);
  if (dims[4] != 0) winner[size_t(o) * channels + c] = tap;
}
