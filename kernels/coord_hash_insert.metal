// Table of coordinate rows (coord_hash.h). Equal coordinates keep their lowest row, whatever the order of the threads.
// in: coords[N, 4] int32, rows with a negative batch are padding and left out; dims = {N, CAP}, CAP a power of two >= N
// out: table[CAP] uint32, 0 before.   grid: one thread a row
uint i = thread_position_in_grid.x;
uint n = uint(dims[0]);
uint mask = uint(dims[1]) - 1u;
if (i < n && coords[4 * size_t(i)] >= 0) {
  device atomic_uint* slots = (device atomic_uint*)table;
  size_t at = 4 * size_t(i);
  int b = coords[at], x = coords[at + 1], y = coords[at + 2], z = coords[at + 3];
  uint slot = coord_hash(b, x, y, z) & mask;
  uint step = coord_step(b, x, y, z);
  for (uint probe = 0u; probe <= mask; probe++) {
    uint entry = atomic_load_explicit(&slots[slot], memory_order_relaxed);
    while (entry == 0u) { // a weak compare-exchange may fail without cause: repeat until the slot is seen taken
      if (atomic_compare_exchange_weak_explicit(
              &slots[slot], &entry, i + 1u, memory_order_relaxed, memory_order_relaxed))
        break;
    }
    if (entry == 0u) break; // this thread took the slot
    if (coord_equal(coords + 4 * size_t(entry - 1u), b, x, y, z)) {
      if (entry > i + 1u) atomic_fetch_min_explicit(&slots[slot], i + 1u, memory_order_relaxed);
      break;
    }
    slot = (slot + step) & mask;
  }
}
