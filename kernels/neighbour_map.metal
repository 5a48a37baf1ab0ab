// Kernel map of the relation input = output * s - p + k * d, from both sides.
// in: coords[N, 4] distinct input sites, table (coord_hash_insert), queries[M, 4] distinct output sites
//     dims = {N, CAP, M, Kx, Ky, Kz, sx, sy, sz, px, py, pz, dx, dy, dz}
// out: nbr[T, M] int32 input row of each tap and output row; back[T, N] int32 output row of each tap and input row;
//      -1: none. `back` holds -1 before.   grid: x one thread an output row, y one tap
uint i = thread_position_in_grid.x;
int tap = int(threadgroup_position_in_grid.y);
if (i < uint(dims[2])) {
  uint n = uint(dims[0]), m = uint(dims[2]);
  int k[3];
  k[0] = tap / (dims[4] * dims[5]);
  k[1] = tap / dims[5] % dims[4];
  k[2] = tap % dims[5];
  int site[3];
  bool inside = queries[4 * size_t(i)] >= 0;
  for (int a = 0; a < 3; a++) { // 64 bits: the products leave 32 for coordinates near their limit
    long v = long(queries[4 * size_t(i) + 1 + a]) * dims[6 + a] - dims[9 + a] + long(k[a]) * dims[12 + a];
    inside = inside && v >= -2147483648l && v <= 2147483647l;
    site[a] = inside ? int(v) : 0;
  }
  int b = queries[4 * size_t(i)];
  int j = inside ? coord_find(coords, table, n, uint(dims[1]) - 1u, b, site[0], site[1], site[2]) : -1;
  nbr[size_t(tap) * m + i] = j;
  if (j >= 0) back[size_t(tap) * n + size_t(j)] = int(i); // one output at most reaches an input through one tap
}
