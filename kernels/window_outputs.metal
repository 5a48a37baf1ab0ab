// Numbers of the output side of windows that tile the lattice, in the layout of tap_tiles.metal, windows as they are.
// in: window[N], tap[N] int32 (window_rows); dims = {N, T}
// out: tiled[P / 32, T, 32] int32 row of each tap of a window, -1 before   grid: one thread a row
uint i = thread_position_in_grid.x;
if (i < uint(dims[0])) {
  int place = window[i];
  if (place >= 0) tiled[size_t(place / 32) * size_t(32 * dims[1]) + size_t(32 * tap[i] + place % 32)] = int(i);
}
