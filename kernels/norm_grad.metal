// dx of norm_apply: (g - mean of g - (x - mean) / (var + eps) * mean of g (x - mean)) / sqrt(var + eps) * weight.
// in: x[N, C], ct[N, C] T, stats[3, C], sums[2, C] (norm_total), weight[C], bias[C] float32
//     dims = {N, C, active, eps (its bits), mode, rows of a threadgroup}; mode 0: g is ct; 1: ct where norm_apply of x is positive
// out: dx[N, C] T, 0 in rows at and past `active`.   grid: x ceil(N / dims[5]), y as norm_moments.   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 2;
threadgroup float centres[32 * V];
threadgroup float scales[32 * V];
threadgroup float shifts[32 * V];
threadgroup float slopes[32 * V];
threadgroup float offsets[32 * V];
int channels = dims[1], active = min(dims[0], dims[2]);
bool relu = dims[4] != 0;
int tid = int(thread_index_in_threadgroup);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col0 = int(threadgroup_position_in_grid.y) * 32 * V, col = col0 + lane * V;
int first = int(threadgroup_position_in_grid.x) * dims[5], last = min(dims[0], first + dims[5]);
bool wide = norm_aligned(x, channels) && norm_aligned(ct, channels) && norm_aligned(dx, channels);
if (tid < 32 * V && col0 + tid < channels) {
  int c = col0 + tid;
  float rstd = metal::rsqrt(stats[2 * channels + c] + as_type<float>(dims[3])), low = stats[channels + c];
  float scale = rstd * weight[c], n = float(max(active, 1));
  float slope = scale * rstd * rstd * (sums[channels + c] / n);
  centres[tid] = stats[c];
  scales[tid] = scale;
  shifts[tid] = bias[c] - low * scale;
  slopes[tid] = slope;
  offsets[tid] = low * slope - scale * (sums[c] / n);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (row < R && col < channels) {
  float centre[V], scale[V], shift[V], slope[V], offset[V];
  TILE_UNROLL
  for (int i = 0; i < V; i++) {
    bool here = col + i < channels;
    centre[i] = here ? centres[lane * V + i] : 0.0f;
    scale[i] = here ? scales[lane * V + i] : 0.0f;
    shift[i] = here ? shifts[lane * V + i] : 0.0f;
    slope[i] = here ? slopes[lane * V + i] : 0.0f;
    offset[i] = here ? offsets[lane * V + i] : 0.0f;
  }
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
