// Sites that a kernel of K taps reaches along one axis.
// in: coords[N, 4] int32 (negative batch: padding); dims = {N, K, axis (0..2), s, p, d, forward, bound}
//     forward = 1: every o with o * s = c + p - k * d; 0: every c * s - p + k * d. bound > 0: within [0, bound)
// out: sites[N * K, 4] int32, batch -1 where there is none; status[8] uint32, 0 before: status[0] becomes 1 if a site
//      lies outside (-2^30, 2^30).   grid: one thread a candidate
uint i = thread_position_in_grid.x;
uint taps = uint(dims[1]);
if (i < uint(dims[0]) * taps) {
  uint row = i / taps;
  int k = int(i % taps), s = dims[3];
  int site[4];
  for (int a = 0; a < 4; a++) site[a] = coords[4 * size_t(row) + a];
  long v = long(coords[4 * size_t(row) + 1 + dims[2]]);
  bool valid = site[0] >= 0;
  if (dims[6] != 0) {
    v = v + dims[4] - long(k) * dims[5];
    long q = v / s, rest = v - q * s;
    valid = valid && rest == 0;
    v = q;
  } else
    v = v * s - dims[4] + long(k) * dims[5];
  if (dims[7] > 0) valid = valid && v >= 0 && v < dims[7];
  if (valid && (v <= -1073741824l || v >= 1073741824l)) {
    device atomic_uint* flags = (device atomic_uint*)status;
    atomic_fetch_or_explicit(&flags[0], 1u, memory_order_relaxed);
    valid = false;
  }
  for (int a = 0; a < 4; a++) {
    int value = a == 1 + dims[2] ? int(v) : site[a];
    sites[4 * size_t(i) + a] = valid ? value : (a == 0 ? -1 : 0);
  }
}
