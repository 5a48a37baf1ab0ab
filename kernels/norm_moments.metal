// Mean and sum of squares around it, by column and part of consecutive rows, fp32, in a fixed order, in one pass: a thread
// takes the mean of its first rows off all of its rows.
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
int n = row < R ? max(last - first - row + R - 1, 0) / R : 0; // rows of this thread
bool wide = norm_aligned(x, channels);
float centre[V], away[V], one[V], two[V]; // away: centre less x[0]
TILE_UNROLL
for (int i = 0; i < V; i++) {
  centre[i] = 0.0f;
  away[i] = 0.0f;
  one[i] = 0.0f;
  two[i] = 0.0f;
}
if (col < channels)
  for (int k = 0; k < n; k += U) {
    norm_piece<T> p[U];
    TILE_UNROLL
    for (int u = 0; u < U; u++)
      if (k + u < n)
        p[u].load(x + size_t(first + row + (k + u) * R) * size_t(channels) + size_t(col), channels - col, wide);
    if (k == 0) {
      norm_piece<T> origin;
      origin.load(x + col, channels - col, wide);
      float share = 1.0f / float(min(n, U));
      TILE_UNROLL
      for (int i = 0; i < V; i++) {
        float sum = 0.0f, start = origin.get(i);
        TILE_UNROLL
        for (int u = 0; u < U; u++)
          if (u < n) sum += p[u].get(i) - start;
        centre[i] = start + sum * share;
        away[i] = centre[i] - start;
      }
    }
    TILE_UNROLL
    for (int u = 0; u < U; u++)
      if (k + u < n) {
        TILE_UNROLL
        for (int i = 0; i < V; i++) {
          float off = p[u].get(i) - centre[i];
          one[i] += off;
          two[i] += off * off;
        }
      }
  }
int width = L * V;
float share = n > 0 ? 1.0f / float(n) : 0.0f;
if (row < R) {
  TILE_UNROLL
  for (int i = 0; i < V; i++) {
    means[row * width + lane * V + i] = away[i] + one[i] * share;
    squares[row * width + lane * V + i] = two[i] - one[i] * one[i] * share;
  }
  if (lane == 0) counts[row] = float(n);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int at = tid; at < width; at += 256) {
  int c = int(threadgroup_position_in_grid.y) * 32 * V + at;
  float mean = 0.0f, square = 0.0f;
  for (int g = 0; g < R; g++) mean += counts[g] * means[g * width + at];
  mean = last > first ? mean / float(last - first) : 0.0f;
  for (int g = 0; g < R; g++) {
    float off = means[g * width + at] - mean;
    square += max(squares[g * width + at], 0.0f) + counts[g] * off * off;
  }
  if (c < channels) {
    parts[(size_t(part) * 2) * size_t(channels) + size_t(c)] = mean;
    parts[(size_t(part) * 2 + 1) * size_t(channels) + size_t(c)] = square;
    if (part == 0) parts[(size_t(P) * 2) * size_t(channels) + size_t(c)] = active > 0 ? float(x[c]) : 0.0f;
  }
}
