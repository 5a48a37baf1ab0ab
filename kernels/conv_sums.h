// Sums of a tile of a convolution, of simdgroups that multiply each by itself (tile.h) or four together (FOURS, group.h).
//   conv_at<FOURS, LD, BK>(r, c)   where element c (a multiple of 16 bytes) of row r of an operand lies in threadgroup memory, rows along
//               the reduced axis. conv_turned_at: of the reduced axis's element r
//   conv_first<FOURS, M>(sg)   first row of the sg-th simdgroup along the rows, of M each
//   conv_sums<T, M, N, EXACT, FOURS>   M x N of each simdgroup
//     .landed()   what was copied can be multiplied after the barrier that follows, and what was multiplied has been read
//     .multiply<BK, LDA, LDB, TURNED>(a, b, sg, sm, sn)   acc += A B: a [m][k], b [n][k]; TURNED: [k][m], [k][n]. sm, sn: first row and
//                 column of simdgroup sg
//     .done()     the sums can be read: .ROWS, .COLS, .row(i), .col(j), .get(i, j, e) as tile_mma's, from row sm and column sn on
#ifndef MLXSPARSE_CONV_SUMS
#define MLXSPARSE_CONV_SUMS
template <int FOURS, int LD, int BK> METAL_FUNC int conv_at(int r, int c) {
  return FOURS ? group_at<FOURS ? BK : 64>(r, c) : r * LD + c;
}
template <int FOURS, int LD, int BK> METAL_FUNC int conv_turned_at(int r, int c) {
  return FOURS ? c / 64 * (64 * BK) + group_at<64>(r, c % 64) : r * LD + c;
}
template <int FOURS, int M> METAL_FUNC int conv_first(int sg) {
  return FOURS ? sg / 4 * 4 * M + sg % 4 * 16 : sg * M;
}
template <typename T, int M, int N, int EXACT, int FOURS> struct conv_sums {
  typedef tile_mma<T, M, N, EXACT> sums;
  static constexpr constant int ROWS = sums::ROWS, COLS = sums::COLS;
  sums acc;
  conv_sums() thread {}
  METAL_FUNC void clear(uint lane) thread { acc.clear(lane); }
  METAL_FUNC void landed() thread {}
  template <int BK, int LDA, int LDB, bool TURNED>
  METAL_FUNC void multiply(const threadgroup T* a, const threadgroup T* b, int, int sm, int sn) thread {
    acc.template mma<BK, LDA, TURNED, LDB, !TURNED>(a + (TURNED ? sm : sm * LDA), b + (TURNED ? sn : sn * LDB));
  }
  METAL_FUNC void done() thread {}
  METAL_FUNC int row(int i) const thread { return acc.row(i); }
  METAL_FUNC int col(int j) const thread { return acc.col(j); }
  METAL_FUNC float get(int i, int j, int e) thread { return acc.get(i, j, e); }
};
// Four simdgroups have M / 16 parts of 64 rows, each 16 rows of every part.
template <typename T, int M, int N> struct conv_sums<T, M, N, 0, 1> {
  typedef tile_mma<T, 16, N, 0> sums;
  static constexpr constant int PARTS = M / 16, EACH = sums::ROWS, ROWS = PARTS * EACH, COLS = sums::COLS;
  sums acc[PARTS];
  conv_sums() thread {}
  METAL_FUNC void clear(uint lane) thread {
    TILE_UNROLL
    for (int p = 0; p < PARTS; p++) acc[p].clear(lane);
  }
  METAL_FUNC void landed() thread {
    done();
    group_fence();
  }
  template <int BK, int LDA, int LDB, bool TURNED>
  METAL_FUNC void multiply(const threadgroup T* a, const threadgroup T* b, int sg, int, int) thread {
    TILE_UNROLL
    for (int p = 0; p < PARTS; p++) group_start(acc[p]);
    TILE_UNROLL
    for (int p = 0; p < PARTS; p++)
      group_mma<BK, !TURNED, !TURNED, 64 * BK>(acc[p], a + (sg / 4 * PARTS + p) * (64 * BK), b, sg % 4);
    group_close();
  }
  METAL_FUNC void done() thread {
    TILE_UNROLL
    for (int p = 0; p < PARTS; p++) group_wait<0>(acc[p]);
  }
  METAL_FUNC int row(int i) const thread { return i / EACH * 64 + acc[0].row(i % EACH); }
  METAL_FUNC int col(int j) const thread { return acc[0].col(j); }
  METAL_FUNC float get(int i, int j, int e) thread { return acc[i / EACH].get(i % EACH, j, e); }
};
#endif
