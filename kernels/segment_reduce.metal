// Reduces the items of each segment, in their order: fp32 sums of 256 items, then of these.
// in: x[N, C] T; order[P] int32 items, item e reads row e % N of x; ptr[G + 1] int32; weight[*] float32 by item
//     dims = {N, C, G, P, mode, has weight}; mode 0 sum, 1 mean, 2 max, 3 min, 4 first
// out: y[G, C] float32, 0 for an empty segment; winner[G, C] int32 item that a max, min or first is taken from (the first
//      of equals; NaN wins over numbers), else -1.   grid: rows.h
uint g = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
uint c = threadgroup_position_in_grid.y * 32u + thread_index_in_simdgroup;
uint channels = uint(dims[1]);
if (g < uint(dims[2]) && c < channels) {
  int mode = dims[4], first = max(ptr[g], 0), last = min(ptr[g + 1], dims[3]), item = -1;
  float total = 0.0f, part = 0.0f;
  for (int p = first; p < last; p++) {
    int e = order[p];
    float value = float(x[size_t(e % dims[0]) * channels + c]);
    if (dims[5] != 0) value *= weight[e];
    if (mode < 2) {
      part += value;
      if ((p - first) % 256 == 255) {
        total += part;
        part = 0.0f;
      }
    } else if (item < 0 || (mode == 2 && exceeds(value, total)) || (mode == 3 && exceeds(-value, -total))) {
      total = value;
      item = e;
    }
  }
  total += part;
  if (mode == 1 && last > first) total /= float(last - first);
  y[size_t(g) * channels + c] = total;
  winner[size_t(g) * channels + c] = item;
}
