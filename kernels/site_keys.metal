// Sites that a kernel reaches, as numbers in lexicographic order: key = ((b * Sx + x - lx) * Sy + y - ly) * Sz + z - lz.
// in: coords[N, 4] int32 (negative batch: padding)
//     dims = {N, forward, cx, cy, cz, Kx, Ky, Kz, sx, sy, sz, px, py, pz, dx, dy, dz, bx, by, bz, lx, ly, lz, Sx, Sy, Sz}
//     forward = 1: every o with o * s = c + p - k * d; 0: every c * s - p + k * d. c: candidates along each axis, the
//     taps, or ceil(K / s) where d = 1. b > 0: within [0, b)
// out: keys[N * cx * cy * cz] uint64, 2^64 - 1 where there is none; status[8] uint32, 0 before: status[0] becomes 1 if a
//     site lies outside (-2^30, 2^30) or outside [l, l + S).   grid: one thread a candidate
uint i = thread_position_in_grid.x;
uint each = uint(dims[2]) * uint(dims[3]) * uint(dims[4]);
if (i < uint(dims[0]) * each) {
  size_t row = size_t(i / each);
  int choice[3];
  int part = int(i % each);
  choice[2] = part % dims[4];
  choice[1] = part / dims[4] % dims[3];
  choice[0] = part / dims[4] / dims[3];
  int b = coords[4 * row];
  bool valid = b >= 0, lost = false;
  ulong key = ulong(b);
  for (int a = 0; a < 3; a++) {
    long c = long(coords[4 * row + 1 + a]), s = dims[8 + a], d = dims[14 + a];
    long v;
    if (dims[1] != 0) {
      long reach = c + dims[11 + a];
      // The taps that can divide: with d = 1 every s-th, from the remainder on.
      long k = d == 1 ? ((reach % s) + s) % s + long(choice[a]) * s : long(choice[a]);
      v = reach - k * d;
      valid = valid && k < dims[5 + a] && v % s == 0;
      v = v / s;
    } else
      v = c * s - dims[11 + a] + long(choice[a]) * d;
    if (dims[17 + a] > 0) valid = valid && v >= 0 && v < dims[17 + a];
    long place = v - dims[20 + a];
    lost = lost || v <= -1073741824l || v >= 1073741824l || place < 0 || place >= dims[23 + a];
    key = key * ulong(dims[23 + a]) + ulong(place);
  }
  if (valid && lost) {
    device atomic_uint* flags = (device atomic_uint*)status;
    atomic_fetch_or_explicit(&flags[0], 1u, memory_order_relaxed);
    valid = false;
  }
  keys[i] = valid ? key : ~ulong(0);
}
