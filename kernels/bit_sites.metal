// The sites whose bits are set, in order (site_bits.h).
// in: bits[8 * B] uint32, before[B] int32, ends[ceil(B / 256)] int32; dims = {B, CAP, lx, ly, lz, Sx, Sy, Sz}
// out: sites[CAP, 4] int32, (-1, 0, 0, 0) past the last.   grid: one thread 8 words, and one a row of sites
uint i = thread_position_in_grid.x;
uint blocks = uint(dims[0]);
if (i < blocks) {
  int place = before[i] + (i >= 256u ? ends[i / 256u - 1u] : 0);
  for (uint w = 0u; w < 8u; w++) {
    uint left = bits[8 * size_t(i) + w];
    while (left != 0u) {
      uint number = i * 256u + w * 32u + popcount((left & (0u - left)) - 1u);
      left &= left - 1u;
      if (place >= 0 && place < dims[1]) {
        for (int a = 2; a >= 0; a--) {
          uint size = uint(dims[5 + a]);
          sites[4 * size_t(place) + 1 + a] = int(number % size) + dims[2 + a];
          number = number / size;
        }
        sites[4 * size_t(place)] = int(number);
      }
      place++;
    }
  }
}
int total = blocks > 0u ? ends[(blocks - 1u) / 256u] : 0;
if (i < uint(dims[1]) && int(i) >= total)
  for (int a = 0; a < 4; a++) sites[4 * size_t(i) + a] = a == 0 ? -1 : 0;
