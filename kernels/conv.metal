// Implicit-GEMM convolution, output stationary: y[o] = bias + sum over taps t of W[t] x[nbr[t, o]], fp32 sums.
// One text for the forward pass and the input gradient: strides say how the weight is read.
// in: x[N, groups * RED] T, weight T, bias[groups * OUT] float32, nbr[K, M] int32 (-1: none)
//     dims = {N, M, K, RED, OUT, groups, group stride, OUT stride, tap stride, RED stride, has bias, active}
//     RED and OUT: reduced and output channels of one group; strides of weight in elements; rows at and past `active` are 0
// out: y[M, groups * OUT] T.   grid (128 * ceil(M / 64), ceil(OUT / 32), groups)
// template: T; EXACT (tile.h)
constexpr int BM = 64;
constexpr int BN = 32;
constexpr int BK = 64 / int(sizeof(T));
constexpr int LD = tile_ld<T>(BK, false);
threadgroup uint4 a_tile[BM * LD * int(sizeof(T)) / 16];
threadgroup uint4 b_tile[BN * LD * int(sizeof(T)) / 16];
threadgroup int source[2 * BM];
threadgroup int live[2 * 4];
threadgroup T* as = (threadgroup T*)a_tile;
threadgroup T* bs = (threadgroup T*)b_tile;
int rows_in = dims[0], rows_out = dims[1], taps = dims[2], red = dims[3], outs = dims[4], groups = dims[5];
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int row0 = int(threadgroup_position_in_grid.x) * BM;
int col0 = int(threadgroup_position_in_grid.y) * BN;
int group = int(threadgroup_position_in_grid.z);
int sm = (sg / 2) * (BM / 2), sn = (sg % 2) * (BN / 2);
tile_mma<T, BM / 2, BN / 2, EXACT> acc;
acc.clear(thread_index_in_simdgroup);
for (int t = 0; t < taps; t++) {
  // Two buffers by parity: a thread that is one tap ahead does not overwrite what others still read.
  int at = (t & 1) * BM, flag = (t & 1) * 4;
  int j = -1;
  if (tid < BM && row0 + tid < rows_out) j = nbr[size_t(t) * size_t(rows_out) + size_t(row0 + tid)];
  if (j >= rows_in) j = -1;
  if (tid < BM) source[at + tid] = j;
  bool any = simd_any(j >= 0);
  if (thread_index_in_simdgroup == 0u) live[flag + sg] = any ? 1 : 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (live[flag] + live[flag + 1] > 0) { // the same for the whole threadgroup: only simdgroups 0 and 1 have rows
    for (int c0 = 0; c0 < red; c0 += BK) {
      for (int e = tid; e < BM * BK; e += 128) {
        int r = e / BK, c = c0 + e % BK, i = source[at + r];
        bool ok = i >= 0 && c < red;
        as[r * LD + e % BK] = ok ? x[(size_t(i) * size_t(groups) + size_t(group)) * size_t(red) + size_t(c)] : T(0.0f);
      }
      for (int e = tid; e < BN * BK; e += 128) {
        int o = col0 + e / BK, c = c0 + e % BK;
        bool ok = o < outs && c < red;
        bs[e / BK * LD + e % BK] = ok ? weight[group * dims[6] + o * dims[7] + t * dims[8] + c * dims[9]] : T(0.0f);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      acc.template mma<BK, LD, false, LD, true>(as + sm * LD, bs + sn * LD);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  int o = row0 + sm + acc.row(i);
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) {
    TILE_UNROLL
    for (int e = 0; e < 2; e++) {
      int c = col0 + sn + acc.col(j) + e;
      if (o < rows_out && c < outs) {
        float value = acc.get(i, j, e);
        if (dims[10] != 0) value += bias[group * outs + c];
        y[size_t(o) * size_t(groups * outs) + size_t(group * outs + c)] = T(o < dims[11] ? value : 0.0f);
      }
    }
  }
}
