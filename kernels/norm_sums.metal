// Sums by column and part, fp32, in a fixed order: of g, and of g * (x - mean), g the gradient of norm_apply before its ReLU.
// in: x[N, C], ct[N, C], y[N, C] T, coef[6, C] float32 (norm_coef); dims = {N, C, active, P, mode}
//     mode 0: g is ct; 1: ct where norm_apply of x is positive; 2: ct where y is
// out: parts[P, 2, C] float32 (as norm_moments); g[N, C] T in mode 2, 0 at and past `active`.   grid as norm_moments.   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 2;
threadgroup float ones[256 * V];
threadgroup float twos[256 * V];
int channels = dims[1], active = min(dims[0], dims[2]), P = dims[3], mode = dims[4];
int tid = int(thread_index_in_threadgroup), part = int(threadgroup_position_in_grid.x);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col0 = int(threadgroup_position_in_grid.y) * 32 * V, col = col0 + lane * V;
int rows = norm_rows(active, P), first = min(part * rows, active), last = min(active, first + rows);
bool on = row < R && col < channels;
bool wide = norm_aligned(x, channels) && norm_aligned(ct, channels) &&
            (mode != 2 || (norm_aligned(y, channels) && norm_aligned(g, channels)));
bool lines = wide && norm_aligned(coef, channels);
float centre[V], scale[V], shift[V], one[V], two[V];
TILE_UNROLL
for (int i = 0; i < V; i++) {
  scale[i] = 0.0f;
  shift[i] = 0.0f;
  one[i] = 0.0f;
  two[i] = 0.0f;
}
if (on) {
  norm_columns<V>(centre, coef + col, channels - col, lines);
  if (mode == 1) {
    norm_columns<V>(scale, coef + 4 * channels + col, channels - col, lines);
    norm_columns<V>(shift, coef + 5 * channels + col, channels - col, lines);
  }
  for (int r = first + row; r < last; r += U * R) {
    norm_piece<T> p[U], q[U], s[U];
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      size_t at = size_t(r + u * R) * size_t(channels) + size_t(col);
      if (r + u * R < last) {
        p[u].load(x + at, channels - col, wide);
        q[u].load(ct + at, channels - col, wide);
        if (mode == 2) s[u].load(y + at, channels - col, wide);
      }
    }
    TILE_UNROLL
    for (int u = 0; u < U; u++)
      if (r + u * R < last) {
        float off[V], grad[V];
        TILE_UNROLL
        for (int i = 0; i < V; i++) {
          off[i] = p[u].get(i) - centre[i];
          grad[i] = q[u].get(i);
        }
        if (mode == 1) {
          TILE_UNROLL
          for (int i = 0; i < V; i++) grad[i] = float(T(off[i] * scale[i] + shift[i])) > 0.0f ? grad[i] : 0.0f;
        }
        if (mode == 2) {
          norm_piece<T> kept;
          kept.clear();
          TILE_UNROLL
          for (int i = 0; i < V; i++) {
            grad[i] = s[u].get(i) > 0.0f ? grad[i] : 0.0f;
            kept.set(i, grad[i]);
          }
          kept.store(g + size_t(r + u * R) * size_t(channels) + size_t(col), channels - col, wide);
        }
        TILE_UNROLL
        for (int i = 0; i < V; i++) {
          one[i] += grad[i];
          two[i] += grad[i] * off[i];
        }
      }
  }
  if (mode == 2) {
    norm_piece<T> none;
    none.clear();
    for (int r = active + part * R + row; r < dims[0]; r += P * R)
      none.store(g + size_t(r) * size_t(channels) + size_t(col), channels - col, wide);
  }
}
int width = L * V;
if (row < R) {
  TILE_UNROLL
  for (int i = 0; i < V; i++) {
    ones[row * width + lane * V + i] = one[i];
    twos[row * width + lane * V + i] = two[i];
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int at = tid; at < width; at += 256) {
  float plain = 0.0f, crossed = 0.0f;
  for (int k = 0; k < R; k++) {
    plain += ones[k * width + at];
    crossed += twos[k * width + at];
  }
  if (col0 + at < channels) {
    parts[(size_t(part) * 2) * size_t(channels) + size_t(col0 + at)] = plain;
    parts[(size_t(part) * 2 + 1) * size_t(channels) + size_t(col0 + at)] = crossed - coef[channels + col0 + at] * plain;
  }
}
