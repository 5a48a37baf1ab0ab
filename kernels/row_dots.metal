// y[i] = sum of a[i, :] * b[i, :] in fp32. in: a[N, C], b[N, C] T; dims = {N, C}   out: y[N] float32.
// grid (256 * ceil(N / 256), 1, 1); a thread is a row.   template: T
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  size_t at = size_t(i) * size_t(dims[1]);
  float sum = 0.0f;
  for (int c = 0; c < dims[1]; c++) sum += float(a[at + size_t(c)]) * float(b[at + size_t(c)]);
  y[i] = sum;
}
