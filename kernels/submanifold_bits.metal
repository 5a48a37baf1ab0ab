// Kernel map of a marked set onto itself, rows in the order of their numbers (site_bits.h), odd sizes, centred: half of the
// taps is looked up, the other half is its mirror image.
// in: coords[N, 4] sites (negative batch: padding), bits, before, ends
//     dims = {N, Kx, Ky, Kz, dx, dy, dz, lx, ly, lz, Sx, Sy, Sz, cells}
// out: nbr[T, N] int32 row of each tap and row, -1 none, -1 before.   grid: x one thread a row, y columns 0 .. Kx * Ky / 2
uint i = thread_position_in_grid.x;
int column = int(threadgroup_position_in_grid.y);
if (i < uint(dims[0])) {
  size_t n = size_t(dims[0]);
  int last = dims[1] * dims[2] * dims[3] - 1;
  int low[3], span[3];
  for (int a = 0; a < 3; a++) {
    low[a] = dims[7 + a];
    span[a] = dims[10 + a];
  }
  int b = coords[4 * size_t(i)];
  long x = long(coords[4 * size_t(i) + 1]) + long(column / dims[2] - dims[1] / 2) * long(dims[4]);
  long y = long(coords[4 * size_t(i) + 2]) + long(column % dims[2] - dims[2] / 2) * long(dims[5]);
  for (int kz = 0; kz < dims[3]; kz++) {
    int tap = column * dims[3] + kz;
    if (b < 0 || 2 * tap > last) continue;
    long z = long(coords[4 * size_t(i) + 3]) + long(kz - dims[3] / 2) * long(dims[6]);
    int j = int(i);
    if (2 * tap < last) {
      uint number = site_number(b, x, y, z, low, span, uint(dims[13]));
      j = number == 4294967295u ? -1 : bit_rank(bits, before, ends, number);
    }
    if (j >= 0 && j < dims[0]) {
      nbr[size_t(tap) * n + size_t(i)] = j;
      nbr[size_t(last - tap) * n + size_t(j)] = int(i);
    }
  }
}
