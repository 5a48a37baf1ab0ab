// The body of norm_fixed.metal and norm_fixed32.metal; P: type of the parameters. Follows norm.h.
#ifndef MLXSPARSE_NORM_FIXED
#define MLXSPARSE_NORM_FIXED
template <typename P>
METAL_FUNC void norm_fixed_line(threadgroup float* scales, threadgroup float* shifts, const device P* mean,
                                const device P* var, const device P* weight, const device P* bias, float eps,
                                int c, int to) {
  float scale = metal::rsqrt(float(var[c]) + eps) * float(weight[c]);
  scales[to] = scale;
  shifts[to] = float(bias[c]) - float(mean[c]) * scale;
}
template <typename T>
METAL_FUNC void norm_fixed_rows(const device T* x, const device T* add, device T* y, const threadgroup float* scales,
                                const threadgroup float* shifts, const device int* dims, int first, int col0, int tid) {
  constexpr int V = 16 / int(sizeof(T));
  constexpr int U = 4;
  int channels = dims[1], last = min(dims[0], first + dims[6]), live = min(last, dims[2]);
  bool relu = dims[4] != 0, more = dims[5] != 0;
  if (norm_aligned(x, channels) && norm_aligned(y, channels) && (!more || norm_aligned(add, channels))) {
    int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L, col = col0 + lane * V;
    if (row < R && col < channels) {
      float scale[V], shift[V];
      TILE_UNROLL
      for (int i = 0; i < V; i++) {
        scale[i] = scales[lane * V + i];
        shift[i] = shifts[lane * V + i];
      }
      TILE_ROLLED
      for (int r = first + row; r < last; r += U * R) {
        norm_piece<T> p[U], q[U];
        TILE_UNROLL
        for (int u = 0; u < U; u++) {
          size_t at = size_t(r + u * R) * size_t(channels) + size_t(col);
          q[u].clear();
          if (r + u * R < live) p[u].load(x + at, V, true);
          if (r + u * R < live && more) q[u].load(add + at, V, true);
        }
        TILE_UNROLL
        for (int u = 0; u < U; u++) {
          norm_piece<T> z;
          z.clear();
          if (r + u * R < live) {
            TILE_UNROLL
            for (int i = 0; i < V; i++) {
              float value = p[u].get(i) * scale[i] + shift[i] + q[u].get(i);
              z.set(i, relu && value < 0.0f ? 0.0f : value);
            }
          }
          if (r + u * R < last) z.store(y + size_t(r + u * R) * size_t(channels) + size_t(col), V, true);
        }
      }
    }
  } else { // number by number
    int width = min(channels - col0, 32 * V);
    TILE_ROLLED
    for (int i = tid; i < width * (last - first); i += 256) {
      int r = first + i / width, c = i % width;
      size_t at = size_t(r) * size_t(channels) + size_t(col0 + c);
      float value = 0.0f;
      if (r < live) {
        value = float(x[at]) * scales[c] + shifts[c];
        if (more) value += float(add[at]);
      }
      y[at] = T(relu && value < 0.0f ? 0.0f : value);
    }
  }
}
#endif
