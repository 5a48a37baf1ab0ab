// Table of coordinate rows (coord_hash.h). Equal coordinates keep their lowest row, whatever the order of the threads.
// in: coords[N, 4] int32, rows with a negative batch are padding and left out; dims = {N, CAP}, CAP a power of two >= N
// out: table[CAP] uint32, 0 before; repeated[8] uint32, 0 before: repeated[0] becomes 1 if two rows are equal.
// grid: one thread a row
uint i = thread_position_in_grid.x;
uint n = uint(dims[0]);
uint mask = uint(dims[1]) - 1u;
if (i < n && coords[4 * size_t(i)] >= 0) {
  device atomic_uint* slots = (device atomic_uint*)table;
  size_t at = 4 * size_t(i);
  int b = coords[at], x = coords[at + 1], y = coords[at + 2], z = coords[at + 3];
  uint hash = coord_hash(b, x, y, z);
  uint rows = coord_rows(n);
  uint mine = coord_tag(hash, rows) | (i + 1u);
  uint slot = hash & mask;
  uint step = 0u;
  for (uint probe = 0u; probe <= mask; probe++) {
    uint entry = atomic_load_explicit(&slots[slot], memory_order_relaxed);
    while (entry == 0u) { // a weak compare-exchange may fail without cause: repeat until the slot is seen taken
      if (atomic_compare_exchange_weak_explicit(
              &slots[slot], &entry, mine, memory_order_relaxed, memory_order_relaxed))
        break;
    }
    if (entry == 0u) break; // this thread took the slot
    uint place = (entry & rows) - 1u;
    if (((entry ^ mine) & ~rows) == 0u && coord_equal(coords + 4 * size_t(place), b, x, y, z)) {
      // Equal coordinates have equal tags: the smaller entry is the lower row.
      if (entry > mine) atomic_fetch_min_explicit(&slots[slot], mine, memory_order_relaxed);
      device atomic_uint* flags = (device atomic_uint*)repeated;
      atomic_fetch_or_explicit(&flags[0], 1u, memory_order_relaxed);
      break;
    }
    if (step == 0u) step = coord_step(b, x, y, z);
    slot = (slot + step) & mask;
  }
}
