// Gradient of a segment max, min or first: to the item that its segment took the value from.
// in: ct[G, C] T, winner[G, C] int32, group[N] int32 segment of each item (-1: none); dims = {N, C, G}
// out: dx[N, C] T.   grid: rows.h
uint i = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint channels = uint(dims[1]);
if (i < uint(dims[0]) && c < channels) {
  int g = group[i];
  T value = T(0.0f);
  if (row_exists(g, dims[2])) {
    size_t at = size_t(g) * channels + c;
    if (winner[at] == int(i)) value = ct[at];
  }
  dx[size_t(i) * channels + c] = value;
}
