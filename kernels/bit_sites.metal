// The sites whose bits are set, in order (site_bits.h).
// in: bits[8 * B] uint32, before[B] int32, ends[ceil(B / 256)] int32; dims = {B, CAP, lx, ly, lz, Sx, Sy, Sz}
// out: sites[CAP, 4] int32, (-1, 0, 0, 0) past the last.   grid: one thread 8 words, and one a row of sites
uint i = thread_position_in_grid.x;
uint blocks = uint(dims[0]), low[3], span[3];
for (int a = 0; a < 3; a++) {
  low[a] = uint(dims[2 + a]);
  span[a] = uint(dims[5 + a]);
}
if (i < blocks) {
  int place = before[i] + (i >= 256u ? ends[i / 256u - 1u] : 0);
  uint words[8];
  for (int part = 0; part < 2; part++) {
    uint4 q = ((const device uint4*)bits)[2 * size_t(i) + part];
    words[4 * part] = q.x;
    words[4 * part + 1] = q.y;
    words[4 * part + 2] = q.z;
    words[4 * part + 3] = q.w;
  }
  for (uint w = 0u; w < 8u; w++) {
    uint left = words[w];
    while (left != 0u) {
      uint number = i * 256u + w * 32u + popcount((left & (0u - left)) - 1u);
      left &= left - 1u;
      if (place >= 0 && place < dims[1]) {
        uint4 site;
        uint rest = number / span[2];
        site.w = number - rest * span[2] + low[2];
        site.x = rest / span[1];
        site.z = rest - site.x * span[1] + low[1];
        rest = site.x;
        site.x = rest / span[0];
        site.y = rest - site.x * span[0] + low[0];
        ((device uint4*)sites)[place] = site;
      }
      place++;
    }
  }
}
int total = blocks > 0u ? ends[(blocks - 1u) / 256u] : 0;
if (i < uint(dims[1]) && int(i) >= total)
  for (int a = 0; a < 4; a++) sites[4 * size_t(i) + size_t(a)] = a == 0 ? -1 : 0;
