// y[o] = after[o] * sum over t of weight[t, o] * before[j] * x[j], j = nbr[t, o]; fp32 sums, taps in order.
// in: x[N, C] T, nbr[K, M] int32 (-1: none), weight[K, M], before[N], after[M] float32
//     dims = {N, C, K, M, has weight, has before, has after, active}; rows at and past `active` are 0
// out: y[M, C] T.   grid: rows.h
uint o = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint m = uint(dims[3]), channels = uint(dims[1]);
if (o < m && c < channels) {
  float sum = 0.0f;
  if (o < uint(dims[7])) {
    for (int t = 0; t < dims[2]; t++) {
      size_t pair = size_t(t) * m + o;
      int j = nbr[pair];
      if (row_exists(j, dims[0])) {
        float value = float(x[size_t(j) * channels + c]);
        if (dims[5] != 0) value *= before[j];
        if (dims[4] != 0) value *= weight[pair];
        sum += value;
      }
    }
    if (dims[6] != 0) sum *= after[o];
  }
  y[size_t(o) * channels + c] = T(sum);
}
