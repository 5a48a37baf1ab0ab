// Rows of coordinates. in: coords[N, 4], table[CAP] (coord_hash_insert), queries[M, 4]; dims = {N, CAP, M}
// out: rows[M] int32, -1 where a query is not among coords or is padding.   grid: one thread a query
uint i = thread_position_in_grid.x;
if (i < uint(dims[2])) {
  size_t at = 4 * size_t(i);
  int b = queries[at];
  rows[i] = b < 0 ? -1
                  : coord_find(coords, table, uint(dims[0]), uint(dims[1]) - 1u, b, queries[at + 1], queries[at + 2],
                               queries[at + 3]);
}
