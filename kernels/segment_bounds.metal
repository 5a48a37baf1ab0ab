// Where each segment begins. in: sorted[n] int32 segment numbers, ascending, negative ones in no segment; dims = {n, G}
// out: ptr[G + 1] int32: segment g owns places [ptr[g], ptr[g + 1]) of sorted.   grid: one thread an entry of ptr
uint g = thread_position_in_grid.x;
if (g <= uint(dims[1])) {
  int low = 0, high = dims[0]; // the first place whose number is at least g
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (sorted[middle] < int(g)) low = middle + 1;
    else high = middle;
  }
  ptr[g] = low;
}
