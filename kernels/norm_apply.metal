// y = (x - mean) / sqrt(var + eps) * weight + bias, plus `add`, then the larger of that and 0.
// in: x[N, C], add[N, C] T, coef[6, C] float32 (norm_coef); dims = {N, C, active, relu, has add, rows of a threadgroup}
// out: y[N, C] T, 0 in rows at and past `active`.   grid: x ceil(N / dims[5]), y as norm_moments.   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 4;
int channels = dims[1], active = min(dims[0], dims[2]);
bool relu = dims[3] != 0, more = dims[4] != 0;
int tid = int(thread_index_in_threadgroup);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col = (int(threadgroup_position_in_grid.y) * 32 + lane) * V;
int first = int(threadgroup_position_in_grid.x) * dims[5], last = min(dims[0], first + dims[5]);
bool wide = norm_aligned(x, channels) && norm_aligned(y, channels) && (!more || norm_aligned(add, channels));
if (row < R && col < channels) {
  float centre[V], scale[V], shift[V];
  bool lines = wide && norm_aligned(coef, channels);
  norm_columns<V>(centre, coef + col, channels - col, lines);
  norm_columns<V>(scale, coef + 4 * channels + col, channels - col, lines);
  norm_columns<V>(shift, coef + 5 * channels + col, channels - col, lines);
  for (int r = first + row; r < last; r += U * R) {
    norm_piece<T> p[U], q[U];
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      size_t at = size_t(r + u * R) * size_t(channels) + size_t(col);
      bool live = r + u * R < min(last, active);
      q[u].clear();
      if (live) p[u].load(x + at, channels - col, wide);
      if (live && more) q[u].load(add + at, channels - col, wide);
    }
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      norm_piece<T> z;
      z.clear();
      if (r + u * R < min(last, active)) {
        TILE_UNROLL
        for (int i = 0; i < V; i++) {
          float value = (p[u].get(i) - centre[i]) * scale[i] + shift[i] + q[u].get(i);
          z.set(i, relu && value < 0.0f ? 0.0f : value);
        }
      }
      if (r + u * R < last) z.store(y + size_t(r + u * R) * size_t(channels) + size_t(col), channels - col, wide);
    }
  }
}
