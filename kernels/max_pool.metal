// Maximum over the taps of each output, and the first tap that attains it; NaN wins over numbers.
// in: x[N, C] T, nbr[K, M] int32 (-1: none); dims = {N, C, K, M}
// out: y[M, C] T, 0 where there is none; winner[M, C] int32 tap, -1 where there is none.   grid: rows.h
uint o = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint m = uint(dims[3]), channels = uint(dims[1]);
if (o < m && c < channels) {
  float best = 0.0f;
  int tap = -1;
  for (int t = 0; t < dims[2]; t++) {
    int j = nbr[size_t(t) * m + o];
    if (row_exists(j, dims[0])) {
      float value = float(x[size_t(j) * channels + c]);
      if (tap < 0 || exceeds(value, best)) {
        best = value;
        tap = t;
      }
    }
  }
  y[size_t(o) * channels + c] = T(best);
  winner[size_t(o) * channels + c] = tap;
}
