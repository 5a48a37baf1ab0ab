// Mean and sum of squares around it, by column and part of consecutive rows, fp32, in a fixed order. A thread joins batches
// of 4 rows, each with its own mean, so one pass over x is enough.
// in: x[N, C] T; dims = {N, C, active, P}
// out: parts[P + 1, 2, C] float32: mean less x[0] and sum of squares; part P: x[0]. Part p has the rows from p * norm_rows on.
// grid: x P, y ceil(C / (32 * values of 16 bytes)); 256 threads (norm.h).   template: T
constexpr int V = 16 / int(sizeof(T));
constexpr int U = 4;
threadgroup float means[256 * V];
threadgroup float squares[256 * V];
threadgroup float counts[256];
int channels = dims[1], active = min(dims[0], dims[2]), P = dims[3];
int tid = int(thread_index_in_threadgroup), part = int(threadgroup_position_in_grid.x);
int L = norm_lanes(channels, V), R = 256 / L, lane = tid % L, row = tid / L;
int col = (int(threadgroup_position_in_grid.y) * 32 + lane) * V;
int rows = norm_rows(active, P), first = min(part * rows, active), last = min(active, first + rows);
bool on = row < R && col < channels;
bool wide = norm_aligned(x, channels);
float shift[V], mean[V], square[V];
TILE_UNROLL
for (int i = 0; i < V; i++) {
  shift[i] = on && active > 0 && col + i < channels ? float(x[col + i]) : 0.0f;
  mean[i] = 0.0f;
  square[i] = 0.0f;
}
float n = 0.0f;
if (on)
  for (int r = first + row; r < last; r += U * R) {
    norm_piece<T> p[U];
    TILE_UNROLL
    for (int u = 0; u < U; u++) {
      p[u].clear();
      if (r + u * R < last) p[u].load(x + size_t(r + u * R) * size_t(channels) + size_t(col), channels - col, wide);
    }
    int m = min((last - r + R - 1) / R, U);
    float each = 1.0f / float(m), total = n + float(m), share = float(m) / total;
    TILE_UNROLL
    for (int i = 0; i < V; i++) {
      float v[U], sum = 0.0f, square2 = 0.0f;
      TILE_UNROLL
      for (int u = 0; u < U; u++) {
        v[u] = p[u].get(i) - shift[i];
        sum += u < m ? v[u] : 0.0f;
      }
      sum *= each;
      TILE_UNROLL
      for (int u = 0; u < U; u++) square2 += u < m ? (v[u] - sum) * (v[u] - sum) : 0.0f;
      float away = sum - mean[i];
      mean[i] += away * share;
      square[i] += square2 + away * away * n * share;
    }
    n = total;
  }
int width = L * V;
if (row < R) {
  TILE_UNROLL
  for (int i = 0; i < V; i++) {
    means[row * width + lane * V + i] = mean[i];
    squares[row * width + lane * V + i] = square[i];
  }
  if (lane == 0) counts[row] = n;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int at = tid; at < width; at += 256) {
  int c = int(threadgroup_position_in_grid.y) * 32 * V + at;
  float one = 0.0f, two = 0.0f;
  for (int g = 0; g < R; g++) one += counts[g] * means[g * width + at];
  one = last > first ? one / float(last - first) : 0.0f;
  for (int g = 0; g < R; g++) {
    float away = means[g * width + at] - one;
    two += squares[g * width + at] + counts[g] * away * away;
  }
  if (c < channels) {
    parts[(size_t(part) * 2) * size_t(channels) + size_t(c)] = one;
    parts[(size_t(part) * 2 + 1) * size_t(channels) + size_t(c)] = two;
    if (part == 0) parts[(size_t(P) * 2) * size_t(channels) + size_t(c)] = active > 0 ? float(x[c]) : 0.0f;
  }
}
