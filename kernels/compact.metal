// Numbers of the flagged items, in order. in: flags[n] uint32, places[n] int32 (inclusive sums of flags); dims = {n, CAP}
// out: rows[CAP] int32, -1 before.   grid: one thread an item
uint i = thread_position_in_grid.x;
if (i < uint(dims[0]) && flags[i] != 0u && places[i] <= dims[1]) rows[places[i] - 1] = int(i);
