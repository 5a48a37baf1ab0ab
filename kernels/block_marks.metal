// What attention adds to the scores of each key: -inf where it is masked, NaN where its key or value is not finite, else 0.
// in: k[rows, D] T, v[rows, DV] T, keys[Z, N] float32 (0 or -inf); rows = Z * KH * N.   dims = {rows, D, DV, KH, N, keys are read}
// out: marks[rows] float32.   grid (256 * ceil(rows / 32), 1, 1); eight lanes are a row.   template: T
constexpr int VEC = 16 / int(sizeof(T));
int lane = int(thread_index_in_simdgroup);
int row = int(threadgroup_position_in_grid.x) * 32 + int(simdgroup_index_in_threadgroup) * 4 + lane / 8;
bool live = row < dims[0];
uint all = score_infinity(T(0.0f));
bool bad = false;
if (live) {
  for (int side = 0; side < 2; side++) {
    int channels = dims[1 + side];
    const device T* from = (side == 0 ? k : v) + size_t(row) * size_t(channels);
    if ((size_t(from) & 15) == 0 && channels % VEC == 0) {
      for (int c = lane % 8 * VEC; c < channels; c += 8 * VEC) {
        uint4 four = *(const device uint4*)(from + c);
        bad = bad || score_infinite<T>(four.x, all) || score_infinite<T>(four.y, all) || score_infinite<T>(four.z, all) || score_infinite<T>(four.w, all);
      }
    } else {
      for (int c = lane % 8; c < channels; c += 8) {
        float value = float(from[c]);
        bad = bad || value - value != 0.0f;
      }
    }
  }
}
uint found = bad ? 1u : 0u;
found |= simd_shuffle_xor(found, ushort(1));
found |= simd_shuffle_xor(found, ushort(2));
found |= simd_shuffle_xor(found, ushort(4));
if (live && lane % 8 == 0) {
  float mark = found != 0u ? as_type<float>(0x7fc00000u) : 0.0f;
  if (dims[5] != 0 && keys[row / (dims[3] * dims[4]) * dims[4] + row % dims[4]] == -INFINITY) mark = -INFINITY;
  marks[row] = mark;
}
