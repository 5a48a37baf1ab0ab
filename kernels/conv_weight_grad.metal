// Weight gradient of a convolution: partial sums over runs of output rows, fp32; sum_parts adds the runs in order.
// in: ct[M, groups * OUT] T, x[N, groups * RED] T, nbr[K, M] int32 (-1: none)
//     dims = {N, M, K, RED, OUT, groups, rows of a run (a multiple of 32), tiles along RED, tiles of a group}
// out: parts[runs, groups * OUT, K, RED] float32.   grid (128 * runs, K, groups * tiles of a group)
// template: T; EXACT (tile.h)
constexpr int BM = 32;
constexpr int BN = 32;
constexpr int BK = 32;
constexpr int LD = tile_ld<T>(BM, true);
threadgroup uint4 a_tile[BK * LD * int(sizeof(T)) / 16];
threadgroup uint4 b_tile[BK * LD * int(sizeof(T)) / 16];
threadgroup T* as = (threadgroup T*)a_tile;
threadgroup T* bs = (threadgroup T*)b_tile;
int rows_in = dims[0], rows_out = dims[1], taps = dims[2], red = dims[3], outs = dims[4], groups = dims[5];
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int run = int(threadgroup_position_in_grid.x);
int tap = int(threadgroup_position_in_grid.y);
int group = int(threadgroup_position_in_grid.z) / dims[8];
int tile = int(threadgroup_position_in_grid.z) % dims[8];
int m0 = tile / dims[7] * BM, n0 = tile % dims[7] * BN;
int sm = (sg / 2) * (BM / 2), sn = (sg % 2) * (BN / 2);
int last = min(rows_out, (run + 1) * dims[6]);
tile_mma<T, BM / 2, BN / 2, EXACT> acc;
acc.clear(thread_index_in_simdgroup);
for (int first = run * dims[6]; first < last; first += BK) {
  int lane_row = first + int(thread_index_in_simdgroup);
  int j = lane_row < last ? nbr[size_t(tap) * size_t(rows_out) + size_t(lane_row)] : -1;
  if (simd_any(j >= 0 && j < rows_in)) { // every simdgroup looks at the same 32 rows
    for (int e = tid; e < BK * BM; e += 128) {
      int o = first + e / BM, c = e % BM;
      int i = o < last ? nbr[size_t(tap) * size_t(rows_out) + size_t(o)] : -1;
      bool pair = i >= 0 && i < rows_in;
      size_t ct_at = (size_t(pair ? o : 0) * size_t(groups) + size_t(group)) * size_t(outs) + size_t(m0 + c);
      size_t x_at = (size_t(pair ? i : 0) * size_t(groups) + size_t(group)) * size_t(red) + size_t(n0 + c);
      as[e / BM * LD + c] = pair && m0 + c < outs ? ct[ct_at] : T(0.0f);
      bs[e / BM * LD + c] = pair && n0 + c < red ? x[x_at] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    acc.template mma<BK, LD, true, LD, false>(as + sm, bs + sn);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  int m = m0 + sm + acc.row(i);
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) {
    TILE_UNROLL
    for (int e = 0; e < 2; e++) {
      int n = n0 + sn + acc.col(j) + e;
      size_t row = (size_t(run) * size_t(groups) + size_t(group)) * size_t(outs) + size_t(m);
      if (m < outs && n < red) parts[(row * size_t(taps) + size_t(tap)) * size_t(red) + size_t(n)] = acc.get(i, j, e);
    }
  }
}
