// Sum of partial results, in order. in: parts[P, n] float32; dims = {P, n}   out: y[n] T.   grid: one thread an element
uint i = thread_position_in_grid.x;
uint n = uint(dims[1]);
if (i < n) {
  const device float* from = parts + i;
  float sum = 0.0f;
  int p = 0;
  for (; p + 8 <= dims[0]; p += 8) { // eight reads on their way at once
    float v[8];
    for (int e = 0; e < 8; e++) v[e] = from[size_t(p + e) * n];
    for (int e = 0; e < 8; e++) sum += v[e];
  }
  for (; p < dims[0]; p++) sum += from[size_t(p) * n];
  y[i] = T(sum);
}
