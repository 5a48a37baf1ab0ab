// A kernel map from the other side. in: nbr[T, M] int32 row of the other side, -1 none
//     dims = {M, N}
// out: back[T, N] int32 row of this side, -1 before; through one tap a row is met once at most.
// grid: x one thread a row, y one tap
uint i = thread_position_in_grid.x;
size_t tap = size_t(threadgroup_position_in_grid.y);
if (i < uint(dims[0])) {
  int j = nbr[tap * size_t(dims[0]) + size_t(i)];
  if (j >= 0 && j < dims[1]) back[tap * size_t(dims[1]) + size_t(j)] = int(i);
}
