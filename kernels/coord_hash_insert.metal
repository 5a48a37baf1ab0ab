// Table of coordinate rows (coord_hash.h). Equal coordinates keep their lowest row, whatever the order of the threads.
// in: coords[N, 4] int32, rows with a negative batch are padding and left out; dims = {N, CAP, R}, CAP a power of two >= max(N, 16), R <= N
// out: table[>= CAP + 8 N + 16] uint32, 0 before: slots, cells and status: status[0] becomes 1 if two rows are equal,
//      status[1 .. 4] the largest batch, x, y, z + 2^31 of the first R rows, status[5 .. 8] 2^31 - 1 less the least of them
// grid: one thread a row, 256 a threadgroup
threadgroup uint ends[8 * 8];
device atomic_uint* slots = (device atomic_uint*)table;
device atomic_uint* found = slots + dims[1];
device atomic_uint* status = found + 8 * size_t(dims[0]);
uint i = thread_position_in_grid.x;
uint n = uint(dims[0]);
uint buckets = uint(dims[1]) / 4u - 1u;
bool wide = sites_aligned(coords);
int site[4];
for (int a = 0; a < 4; a++) site[a] = -1;
if (i < n) load_site(coords, size_t(i), wide, site);
if (site[0] >= 0) {
  int b = site[0], x = coord_half(site[1]), y = coord_half(site[2]), z = coord_half(site[3]);
  uint hash = coord_hash(b, x, y, z);
  uint rows = coord_rows(n);
  uint mine = coord_tag(hash, rows) | (i + 1u);
  uint bucket = coord_first(hash, x, y, z), step = 0u;
  uint block = n; // the row that stands for the block
  for (uint probe = 0u; probe <= buckets && block == n; probe++) {
    for (uint k = 0u; k < 4u && block == n; k++) {
      device atomic_uint* slot = slots + 4u * (bucket & buckets) + k;
      uint entry = atomic_load_explicit(slot, memory_order_relaxed);
      while (entry == 0u) { // a weak compare-exchange may fail without cause: repeat until the slot is seen taken
        if (atomic_compare_exchange_weak_explicit(slot, &entry, mine, memory_order_relaxed, memory_order_relaxed)) break;
      }
      uint place = entry == 0u ? i : (entry & rows) - 1u;
      bool alike = entry == 0u || ((entry ^ mine) & ~rows) == 0u;
      if (alike && (entry == 0u || coord_inside(coords, place, wide, b, x, y, z))) block = place;
    }
    if (step == 0u) step = coord_step(b, x, y, z);
    bucket += step;
  }
  if (block < n) {
    size_t cell = 8 * size_t(block) + size_t(coord_cell(site[1], site[2], site[3]));
    uint before = atomic_fetch_max_explicit(&found[cell], ~i, memory_order_relaxed);
    if (before != 0u) atomic_fetch_or_explicit(&status[0], 1u, memory_order_relaxed);
  }
}
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
for (int a = 0; a < 8; a++) {
  uint value = 0u;
  if (i < uint(dims[2])) {
    uint biased = uint(site[a & 3]) ^ 0x80000000u; // in the order of the signed numbers
    value = a < 4 ? biased : ~biased;
  }
  value = simd_max(value);
  if (lane == 0) ends[8 * sg + a] = value;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (sg == 0 && lane < 8) {
  uint value = 0u;
  for (int s = 0; s < 8; s++) value = max(value, ends[8 * s + lane]);
  atomic_fetch_max_explicit(&status[1 + lane], value, memory_order_relaxed);
}
