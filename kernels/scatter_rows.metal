// y[rows[i]] = x[i]; other rows of y keep what the launcher filled them with.
// in: x[N, C] T, rows[N] int32 distinct (-1: dropped); dims = {N, C, M}
// out: y[M, C] T.   grid: rows.h
uint i = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint channels = uint(dims[1]);
if (i < uint(dims[0]) && c < channels) {
  int o = rows[i];
  if (row_exists(o, dims[2])) y[size_t(o) * channels + c] = x[size_t(i) * channels + c];
}
