// Gradients of segment_attend.metal: scores are computed again, tile by tile. The owner of a gradient row meets the others.
//   MODE 0: dq. Owners are queries, others keys: a = q, b = k, c = ct, d = v
//   MODE 1: dk. Owners are keys, others queries: a = k, b = q, c = v, d = ct
//   MODE 2: dv. As 1; c is not read
// in: a[N, H, D] T, b[M, OH, D] T, c[N, H, DV] T, d[M, OH, DV] T, lse, delta[queries, query heads] float32, scale[1],
//     a_rows[P], b_rows[R], span[P, 2], tiles[W, 4] int32 of the owners (segment_attend.metal)
//     dims = {W, N, M, P, R, H: heads of the owners, OH, D, DV};   delta = sum(ct * y) over the channels
// out: y[N, H, D or DV] T; rows of no tile are not written.   grid (32 * WM * W * H, 1, 1); key heads add up their query heads
// template: T, MODE; DIM >= D, DV, a multiple of 16; BM owners, BN others of a step; WM simdgroups; EXACT (tile.h)
constexpr int NT = 32 * WM;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int LD = tile_ld<T>(DIM, false);
constexpr int LDV = tile_ld<T>(DIM, true);
constexpr int LDP = tile_ld<T>(BN, false);
constexpr int PSIZE = ATTEND_REGISTERS && sizeof(T) == 2 ? VEC : BM * LDP;
threadgroup uint4 smem[(2 * BM * LD + 2 * BN * LDV + PSIZE) * int(sizeof(T)) / 16];
threadgroup float mark[BN];
threadgroup float other_lse[BN];
threadgroup float other_delta[BN];
threadgroup T* as = (threadgroup T*)smem;
threadgroup T* cs = as + BM * LD;
threadgroup T* bs = cs + BM * LD;
threadgroup T* ds = bs + BN * LDV;
threadgroup T* ps = ds + BN * LDV;
int n = dims[1], m = dims[2], a_size = dims[3], b_size = dims[4], heads = dims[5], other_heads = dims[6];
int channels = dims[7], outs = dims[8];
int tid = int(thread_index_in_threadgroup);
int sm = int(simdgroup_index_in_threadgroup) * (BM / WM);
int tile = int(threadgroup_position_in_grid.x) / heads * 4;
int head = int(threadgroup_position_in_grid.x) % heads;
int group = MODE == 0 ? 1 : other_heads / heads;
int a0 = tiles[tile], b0 = tiles[tile + 2];
int live = a0 >= 0 && a0 < a_size ? clamp(tiles[tile + 1], 0, min(BM, a_size - a0)) : 0;
int others = b0 >= 0 && b0 < b_size && live > 0 ? clamp(tiles[tile + 3], 0, b_size - b0) : 0;
a0 = live > 0 ? a0 : 0, b0 = others > 0 ? b0 : 0; // no sum of what does not exist
int steps = (others + BN - 1) / BN;
bool wide_a = stage_aligned(a) && channels % VEC == 0, wide_b = stage_aligned(b) && channels % VEC == 0;
bool wide_c = stage_aligned(c) && outs % VEC == 0, wide_d = stage_aligned(d) && outs % VEC == 0;
float factor = scale[0] * SEGMENT_LOG2E;
tile_mma<T, BM / WM, DIM, EXACT> sums;
sums.clear(thread_index_in_simdgroup);
tile_mma<T, BM / WM, BN, EXACT> p;
p.clear(thread_index_in_simdgroup);
tile_mma<T, BM / WM, BN, EXACT> dp;
dp.clear(thread_index_in_simdgroup);
float row_lse[p.ROWS], row_delta[p.ROWS];
int low[p.ROWS], high[p.ROWS];
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  low[i] = r < live ? segment_end(span, 2 * (a0 + r), b_size) - b0 : 0;
  high[i] = r < live ? min(segment_end(span, 2 * (a0 + r) + 1, b_size) - b0, others) : 0;
  int row = segment_row(a_rows, a0 + r, MODE == 0 && r < live, n);
  size_t item = size_t(max(row, 0)) * size_t(heads) + size_t(head);
  row_lse[i] = row >= 0 ? lse[item] * SEGMENT_LOG2E : 0.0f;
  row_delta[i] = row >= 0 ? delta[item] : 0.0f;
}
int seen_from = sm < live ? segment_end(span, 2 * (a0 + sm), b_size) - b0 : others;
int last = a0 + max(0, min(sm + BM / WM, live) - 1);
int seen_to = sm < live ? segment_end(span, 2 * last + 1, b_size) - b0 : 0;
int whole_from = sm < live ? segment_end(span, 2 * last, b_size) - b0 : 0;
int whole_to = sm < live ? min(segment_end(span, 2 * (a0 + sm) + 1, b_size) - b0, others) : 0;
segment_fetch<T, BM, DIM, LD, NT>(as, a, a_rows, a0, live, n, heads, head, channels, wide_a, tid);
if (MODE != 2) segment_fetch<T, BM, DIM, LD, NT>(cs, c, a_rows, a0, live, n, heads, head, outs, wide_c, tid);
for (int s = 0; s < steps * group; s++) {
  int at = s % steps * BN;
  int other_head = MODE == 0 ? head * other_heads / heads : head * group + s / steps;
  bool busy = seen_from < at + BN && seen_to > at;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  segment_fetch<T, BN, DIM, LDV, NT>(bs, b, b_rows, b0 + at, others - at, m, other_heads, other_head, channels, wide_b, tid);
  segment_fetch<T, BN, DIM, LDV, NT>(ds, d, b_rows, b0 + at, others - at, m, other_heads, other_head, outs, wide_d, tid);
  stage_close();
  if (MODE != 0) {
    for (int e = tid; e < BN; e += NT) {
      int row = segment_row(b_rows, b0 + at + e, at + e < others, m);
      size_t item = size_t(max(row, 0)) * size_t(other_heads) + size_t(other_head);
      other_lse[e] = row >= 0 ? lse[item] * SEGMENT_LOG2E : 0.0f;
      other_delta[e] = row >= 0 ? delta[item] : 0.0f;
    }
  }
  stage_wait<0>();
  segment_clean<T, BN, DIM, LDV, NT, true>(bs, mark, tid);
  segment_clean<T, BN, DIM, LDV, NT, false>(ds, mark, tid);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (busy) {
    p.clear(thread_index_in_simdgroup);
    p.template mma<DIM, LD, false, LDV, true>(as + sm * LD, bs);
    if (MODE != 2) {
      dp.clear(thread_index_in_simdgroup);
      dp.template mma<DIM, LD, false, LDV, true>(cs + sm * LD, ds);
    }
    TILE_UNROLL
    for (int i = 0; i < p.ROWS; i++) {
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) {
        TILE_UNROLL
        for (int e = 0; e < 2; e++) {
          int col = p.col(j) + e;
          float t = segment_exp2(p.get(i, j, e) * factor - (MODE == 0 ? row_lse[i] : other_lse[col]));
          if (MODE != 2) t *= dp.get(i, j, e) - (MODE == 0 ? row_delta[i] : other_delta[col]);
          tile_set(p, i, j, e, t);
        }
      }
    }
    if (whole_from > at || whole_to < at + BN || segment_marked<BN>(mark, int(thread_index_in_simdgroup))) {
      TILE_UNROLL
      for (int i = 0; i < p.ROWS; i++) {
        TILE_UNROLL
        for (int j = 0; j < p.COLS; j++) {
          TILE_UNROLL
          for (int e = 0; e < 2; e++) {
            int col = p.col(j) + e;
            bool seen = at + col >= low[i] && at + col < high[i];
            tile_set(p, i, j, e, seen ? p.get(i, j, e) + mark[col] : 0.0f);
          }
        }
      }
    }
    tile_apply<LDP, LDV>(sums, p, ps + (PSIZE > VEC ? sm * LDP : 0), MODE == 2 ? ds : bs);
  }
}
int width = MODE == 2 ? outs : channels;
float share = MODE == 2 ? 1.0f : scale[0];
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  int row = segment_row(a_rows, a0 + r, r < live, n);
  if (row >= 0) {
    size_t to = (size_t(row) * size_t(heads) + size_t(head)) * size_t(width);
    TILE_UNROLL
    for (int j = 0; j < sums.COLS; j++) {
      int col = sums.col(j);
      if (col + 1 < width) stage_put2(y + to + col, sums.get(i, j, 0) * share, sums.get(i, j, 1) * share, width % 2 == 0);
      else if (col < width) y[to + size_t(col)] = T(sums.get(i, j, 0) * share);
    }
  }
}
