// dx of norm_apply: (g - mean of g - (x - mean) / (var + eps) * mean of g (x - mean)) / sqrt(var + eps) * weight.
// in: x[N, C], ct[N, C] T, coef[6, C] (norm_coef), slopes[2, C] float32 (norm_slope)
//     dims = {N, C, active, relu, rows of a threadgroup}; relu: g is ct where norm_apply of x is positive, else ct
// out: dx[N, C] T, 0 in rows at and past `active`.   grid: x ceil(N / dims[4]), y as norm_moments.   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 2;
int channels = dims[1], active = min(dims[0], dims[2]);
bool relu = dims[3] != 0;
int tid = int(thread_index_in_threadgroup);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col = (int(threadgroup_position_in_grid.y) * 32 + lane) * V;
int first = int(threadgroup_position_in_grid.x) * dims[4], last = min(dims[0], first + dims[4]);
bool wide = norm_aligned(x, channels) && norm_aligned(ct, channels) && norm_aligned(dx, channels);
if (row < R && col < channels) {
  float centre[V], scale[V], shift[V], slope[V], offset[V];
  bool lines = wide && norm_aligned(coef, channels) && norm_aligned(slopes, channels);
  norm_columns<V>(centre, coef + col, channels - col, lines);
  norm_columns<V>(scale, coef + 4 * channels + col, channels - col, lines);
  norm_columns<V>(shift, coef + 5 * channels + col, channels - col, lines);
  norm_columns<V>(slope, slopes + col, channels - col, lines);
  norm_columns<V>(offset, slopes + channels + col, channels - col, lines);
  for (int r = first + row; r < last; r += U * R) {
    norm_piece<T> p[U], q[U];
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      size_t at = size_t(r + u * R) * size_t(channels) + size_t(col);
      if (r + u * R < min(last, active)) {
        p[u].load(x + at, channels - col, wide);
        q[u].load(ct + at, channels - col, wide);
      }
    }
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      norm_piece<T> z;
      z.clear();
      if (r + u * R < min(last, active)) {
        TILE_UNROLL
        for (int i = 0; i < V; i++) {
          float off = p[u].get(i) - centre[i], grad = q[u].get(i);
          if (relu) grad = float(T(off * scale[i] + shift[i])) > 0.0f ? grad : 0.0f;
          z.set(i, grad * scale[i] - off * slope[i] + offset[i]);
        }
      }
      if (r + u * R < last) z.store(dx + size_t(r + u * R) * size_t(channels) + size_t(col), channels - col, wide);
    }
  }
}
