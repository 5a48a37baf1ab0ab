// Sum of partial results, in order. in: parts[P, n] float32; dims = {P, n}   out: y[n] T.   grid: one thread an element
uint i = thread_position_in_grid.x;
uint n = uint(dims[1]);
if (i < n) {
  float sum = 0.0f;
  for (int p = 0; p < dims[0]; p++) sum += parts[size_t(p) * n + i];
  y[i] = T(sum);
}
