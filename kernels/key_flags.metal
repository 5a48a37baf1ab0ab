// Which of sorted keys are the first of their kind. in: keys[n] uint64 (site_keys), sorted; dims = {n}
// out: flags[n] int32, 1 or 0.   grid: one thread a key
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  ulong key = keys[i];
  bool first = i == 0u || keys[i - 1u] != key;
  flags[i] = first && key != ~ulong(0) ? 1 : 0;
}
