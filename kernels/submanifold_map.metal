// Kernel map of a set onto itself, odd sizes, centred: half of the taps is looked up, the other half is its mirror image.
// in: coords[N, 4] distinct sites (negative batch: padding), table[CAP] (coord_hash_insert)
//     dims = {N, CAP, Kx, Ky, Kz, dx, dy, dz}
// out: nbr[T, N] int32 row of each tap and row, -1 none, -1 before.   grid: x one thread a row, y taps 0 .. T / 2
uint i = thread_position_in_grid.x;
int tap = int(threadgroup_position_in_grid.y);
if (i < uint(dims[0])) {
  uint n = uint(dims[0]);
  int last = dims[2] * dims[3] * dims[4] - 1;
  int k[3];
  k[0] = tap / (dims[3] * dims[4]);
  k[1] = tap / dims[4] % dims[3];
  k[2] = tap % dims[4];
  int b = coords[4 * size_t(i)];
  int site[3];
  bool inside = b >= 0;
  for (int a = 0; a < 3; a++) {
    long v = long(coords[4 * size_t(i) + 1 + a]) + long(k[a] - dims[2 + a] / 2) * dims[5 + a];
    inside = inside && v >= -2147483648l && v <= 2147483647l;
    site[a] = inside ? int(v) : 0;
  }
  if (inside && 2 * tap == last) nbr[size_t(tap) * n + i] = int(i);
  else if (inside) {
    int j = coord_find(coords, table, n, uint(dims[1]) - 1u, b, site[0], site[1], site[2]);
    if (j >= 0) {
      nbr[size_t(tap) * n + i] = j;
      nbr[size_t(last - tap) * n + size_t(j)] = int(i);
    }
  }
}
