// Maximum over the taps of each output, and the first tap that attains it; NaN wins over numbers.
// in: x[N, C] T, nbr[K, M] int32 (-1: none)
//     dims = {N, C, K, M, winner wanted, lanes of a row (a power of two, at most 32), channels of a lane: 1, or 16 bytes}
// out: y[M, C] T, 0 where there is none; winner[M, C] int32 tap, -1 where there is none.
// grid: x 256 / lanes rows a threadgroup, y channels of as many lanes
constexpr int V = 16 / int(sizeof(T)), HALF = V / 4;
uint lanes = uint(dims[5]), each = uint(dims[6]), t = thread_index_in_threadgroup;
uint o = threadgroup_position_in_grid.x * (256u / lanes) + t / lanes;
uint c = (threadgroup_position_in_grid.y * lanes + t % lanes) * each;
uint m = uint(dims[3]), channels = uint(dims[1]);
int rows = dims[0], taps = dims[2];
bool wanted = dims[4] != 0;
if (o < m && c < channels) {
  if (each == uint(V) && (size_t(x) & 15) == 0) {
    float best[V];
    int tap[V];
    for (int v = 0; v < V; v++) {
      best[v] = 0.0f;
      tap[v] = -1;
    }
    for (int start = 0; start < taps; start += 8) { // eight reads are on their way at once
      int row[8];
      uint words[8][4];
      for (int u = 0; u < 8; u++) row[u] = start + u < taps ? nbr[size_t(start + u) * m + o] : -1;
      for (int u = 0; u < 8; u++) {
        if (!row_exists(row[u], rows)) continue;
        uint4 q = *(const device uint4*)(x + size_t(row[u]) * channels + c);
        words[u][0] = q.x;
        words[u][1] = q.y;
        words[u][2] = q.z;
        words[u][3] = q.w;
      }
      for (int u = 0; u < 8; u++)
        if (row_exists(row[u], rows))
          for (int v = 0; v < V; v++) {
            float value = word_value<T>(words[u][v / HALF], v % HALF);
            if (tap[v] < 0 || exceeds(value, best[v])) {
              best[v] = value;
              tap[v] = start + u;
            }
          }
    }
    size_t to = size_t(o) * channels + c;
    uint4 q;
    q.x = word_of<T>(best[0], best[HALF - 1]);
    q.y = word_of<T>(best[HALF], best[2 * HALF - 1]);
    q.z = word_of<T>(best[2 * HALF], best[3 * HALF - 1]);
    q.w = word_of<T>(best[3 * HALF], best[4 * HALF - 1]);
    *(device uint4*)(y + to) = q;
    if (wanted)
      for (int v = 0; v < V; v++) winner[to + size_t(v)] = tap[v];
  } else {
    for (uint v = 0u; v < each; v++) {
      float best = 0.0f;
      int tap = -1;
      for (int start = 0; start < taps; start += 8) {
        float value[8];
        bool there[8];
        for (int u = 0; u < 8; u++) {
          int j = start + u < taps ? nbr[size_t(start + u) * m + o] : -1;
          there[u] = row_exists(j, rows);
          value[u] = there[u] ? float(x[size_t(j) * channels + c + v]) : 0.0f;
        }
        for (int u = 0; u < 8; u++)
          if (there[u] && (tap < 0 || exceeds(value[u], best))) {
            best = value[u];
            tap = start + u;
          }
      }
      size_t to = size_t(o) * channels + c + v;
      y[to] = T(best);
      if (wanted) winner[to] = tap;
    }
  }
}
