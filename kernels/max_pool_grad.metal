// Gradient of max_pool: each input gathers from the outputs that it won. fp32 sums, taps in order.
// in: ct[M, C] T, winner[M, C] int32, back[K, N] int32 output row of each tap and input (-1: none); dims = {N, C, K, M}
// out: dx[N, C] T.   grid: rows.h
uint i = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint n = uint(dims[0]), channels = uint(dims[1]);
if (i < n && c < channels) {
  float sum = 0.0f;
  for (int t = 0; t < dims[2]; t++) {
    int o = back[size_t(t) * n + i];
    if (row_exists(o, dims[3])) {
      size_t at = size_t(o) * channels + c;
      if (winner[at] == t) sum += float(ct[at]);
    }
  }
  dx[size_t(i) * channels + c] = T(sum);
}
