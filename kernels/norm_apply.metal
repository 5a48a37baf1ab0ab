// y = (x - mean) / sqrt(var + eps) * weight + bias, plus `add`, then the larger of that and 0.
// in: x[N, C], add[N, C] T, stats[3, C] (norm_total), weight[C], bias[C] float32
//     dims = {N, C, active, eps (its bits), relu, has add, rows of a threadgroup}
// out: y[N, C] T, 0 in rows at and past `active`.   grid: x ceil(N / dims[6]), y as norm_moments.   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 4;
threadgroup float centres[32 * V];
threadgroup float scales[32 * V];
threadgroup float shifts[32 * V];
int channels = dims[1], active = min(dims[0], dims[2]);
bool relu = dims[4] != 0, more = dims[5] != 0;
int tid = int(thread_index_in_threadgroup);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col0 = int(threadgroup_position_in_grid.y) * 32 * V, col = col0 + lane * V;
int first = int(threadgroup_position_in_grid.x) * dims[6], last = min(dims[0], first + dims[6]);
bool wide = norm_aligned(x, channels) && norm_aligned(y, channels) && (!more || norm_aligned(add, channels));
if (tid < 32 * V && col0 + tid < channels) {
  int c = col0 + tid;
  float scale = metal::rsqrt(stats[2 * channels + c] + as_type<float>(dims[3])) * weight[c];
  centres[tid] = stats[c];
  scales[tid] = scale;
  shifts[tid] = bias[c] - stats[channels + c] * scale;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (row < R && col < channels) {
  float centre[V], scale[V], shift[V];
  TILE_UNROLL
  for (int i = 0; i < V; i++) {
    bool here = col + i < channels;
    centre[i] = here ? centres[lane * V + i] : 0.0f;
    scale[i] = here ? scales[lane * V + i] : 0.0f;
    shift[i] = here ? shifts[lane * V + i] : 0.0f;
  }
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
