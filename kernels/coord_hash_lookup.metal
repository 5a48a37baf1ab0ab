// Rows of coordinates. in: coords[N, 4], table (coord_hash_insert), queries[M, 4]; dims = {N, CAP, M}
// out: rows[M] int32, -1 where a query is not among coords or is padding.   grid: one thread a query
uint i = thread_position_in_grid.x;
if (i < uint(dims[2])) {
  int q[4];
  load_site(queries, size_t(i), sites_aligned(queries), q);
  rows[i] = q[0] < 0 ? -1 : coord_find(coords, table, uint(dims[0]), uint(dims[1]) - 1u, q[0], q[1], q[2], q[3]);
}
