// What attention adds to the scores of each key: -inf where it is masked, NaN where its key or value is not finite, else 0.
// in: k[rows, D] T, v[rows, DV] T, keys[Z, N] float32 (0 or -inf); rows = Z * KH * N.   dims = {rows, D, DV, KH, N, keys are read}
// out: marks[rows] float32.   grid (256 * ceil(rows / 8), 1, 1); a simdgroup is a row.   template: T
int row = int(threadgroup_position_in_grid.x) * 8 + int(simdgroup_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup);
bool live = row < dims[0];
bool bad = false;
if (live) {
  for (int c = lane; c < dims[1]; c += 32) {
    float value = float(k[size_t(row) * size_t(dims[1]) + size_t(c)]);
    bad = bad || value - value != 0.0f;
  }
  for (int c = lane; c < dims[2]; c += 32) {
    float value = float(v[size_t(row) * size_t(dims[2]) + size_t(c)]);
    bad = bad || value - value != 0.0f;
  }
}
bad = simd_any(bad);
if (live && lane == 0) {
  float mark = bad ? as_type<float>(0x7fc00000u) : 0.0f;
  if (dims[5] != 0 && keys[row / (dims[3] * dims[4]) * dims[4] + row % dims[4]] == -INFINITY) mark = -INFINITY;
  marks[row] = mark;
}
