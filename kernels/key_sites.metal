// Sites of the distinct keys. in: keys[n] uint64 sorted (site_keys), places[n] int32 (inclusive sums of key_flags)
//     dims = {n, CAP, lx, ly, lz, Sx, Sy, Sz}
// out: sites[CAP, 4] int32, (-1, 0, 0, 0) past the last.   grid: one thread a key, and one a row of sites
uint i = thread_position_in_grid.x;
uint n = uint(dims[0]);
if (i < n) {
  int place = places[i] - 1;
  int before = i == 0u ? -1 : places[i - 1u] - 1;
  if (place != before && place >= 0 && place < dims[1]) {
    ulong key = keys[i];
    for (int a = 2; a >= 0; a--) {
      ulong size = ulong(dims[5 + a]);
      sites[4 * size_t(place) + 1 + a] = int(key % size) + dims[2 + a];
      key = key / size;
    }
    sites[4 * size_t(place)] = int(key);
  }
}
int total = n > 0u ? places[n - 1u] : 0;
if (i < uint(dims[1]) && int(i) >= total)
  for (int a = 0; a < 4; a++) sites[4 * size_t(i) + a] = a == 0 ? -1 : 0;
