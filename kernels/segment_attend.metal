// Attention inside segments, streaming: the query at position p sees the keys at positions [lo[p], hi[p]). fp32 sums and
// exponentials; scores live in registers.
// in: q[N, H, D] T, k[M, KH, D] T, v[M, KH, DV] T, scale[1] > 0, q_rows[P], k_rows[R] int32 (row of each position),
//     span[P, 2] int32 (lo, hi), tiles[W, 4] int32 (first query, queries <= BM, first key, keys: the union of their spans);
//     inside a tile lo and hi ascend.   dims = {W, N, M, P, R, H, KH, D, DV}
// out: y[N, H, DV] T, lse[N, H] float32: 0 and -inf where a query has no key; rows of no tile are not written.
// grid (32 * WM * W * H, 1, 1).   template: T; DIM >= D, DV, a multiple of 16; BM queries, BN keys of a step;
//           WM simdgroups, each BM / WM queries; EXACT (tile.h)
constexpr int NT = 32 * WM;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int LD = tile_ld<T>(DIM, false); // q and k: rows of channels
constexpr int LDV = tile_ld<T>(DIM, true); // v: rows run along the reduced axis
constexpr int LDP = tile_ld<T>(BN, false);
constexpr int PSIZE = ATTEND_REGISTERS && sizeof(T) == 2 ? VEC : BM * LDP;
threadgroup uint4 smem[((BM + BN) * LD + BN * LDV + PSIZE) * int(sizeof(T)) / 16];
threadgroup float mark[BN];
threadgroup T* qs = (threadgroup T*)smem;
threadgroup T* ks = qs + BM * LD;
threadgroup T* vs = ks + BN * LD;
threadgroup T* ps = vs + BN * LDV;
int n = dims[1], m = dims[2], q_size = dims[3], k_size = dims[4], heads = dims[5], key_heads = dims[6];
int channels = dims[7], outs = dims[8];
int tid = int(thread_index_in_threadgroup);
int sm = int(simdgroup_index_in_threadgroup) * (BM / WM);
int tile = int(threadgroup_position_in_grid.x) / heads * 4; // the heads of a tile run together: their rows lie together
int head = int(threadgroup_position_in_grid.x) % heads;
int key_head = head * key_heads / heads;
int q0 = tiles[tile], k0 = tiles[tile + 2];
int live = q0 >= 0 && q0 < q_size ? clamp(tiles[tile + 1], 0, min(BM, q_size - q0)) : 0;
int keys = k0 >= 0 && k0 < k_size && live > 0 ? clamp(tiles[tile + 3], 0, k_size - k0) : 0;
q0 = live > 0 ? q0 : 0, k0 = keys > 0 ? k0 : 0; // no sum of what does not exist
int steps = (keys + BN - 1) / BN;
bool wide_q = stage_aligned(q) && channels % VEC == 0;
bool wide_k = stage_aligned(k) && channels % VEC == 0;
bool wide_v = stage_aligned(v) && outs % VEC == 0;
float factor = scale[0] * SEGMENT_LOG2E; // exponentials are powers of 2, and scores wait for their scale
tile_mma<T, BM / WM, DIM, EXACT> sums;
sums.clear(thread_index_in_simdgroup);
tile_mma<T, BM / WM, BN, EXACT> p;
p.clear(thread_index_in_simdgroup);
float top[p.ROWS], total[p.ROWS];
int low[p.ROWS], high[p.ROWS];
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  top[i] = -INFINITY;
  total[i] = 0.0f;
  low[i] = r < live ? segment_end(span, 2 * (q0 + r), k_size) - k0 : 0;
  high[i] = r < live ? min(segment_end(span, 2 * (q0 + r) + 1, k_size) - k0, keys) : 0;
}
// Keys that this simdgroup's queries see: it rests in other steps.
int seen_from = sm < live ? segment_end(span, 2 * (q0 + sm), k_size) - k0 : keys;
int last = q0 + max(0, min(sm + BM / WM, live) - 1);
int seen_to = sm < live ? segment_end(span, 2 * last + 1, k_size) - k0 : 0;
int whole_from = sm < live ? segment_end(span, 2 * last, k_size) - k0 : 0; // and those that all of them see: nothing to mask
int whole_to = sm < live ? min(segment_end(span, 2 * (q0 + sm) + 1, k_size) - k0, keys) : 0;
segment_fetch<T, BM, DIM, LD, NT>(qs, q, q_rows, q0, live, n, heads, head, channels, wide_q, tid);
segment_fetch<T, BN, DIM, LD, NT>(ks, k, k_rows, k0, keys, m, key_heads, key_head, channels, wide_k, tid);
stage_close();
segment_fetch<T, BN, DIM, LDV, NT>(vs, v, k_rows, k0, keys, m, key_heads, key_head, outs, wide_v, tid);
stage_close();
// Two groups are in flight: keys s and values s, then values s and keys s + 1.
for (int s = 0; s < steps; s++) {
  bool busy = seen_from < (s + 1) * BN && seen_to > s * BN;
  int next = (s + 1) * BN;
  stage_wait<1>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (busy) {
    p.clear(thread_index_in_simdgroup);
    p.template mma<DIM, LD, false, LD, true>(qs + sm * LD, ks);
  }
  if (s + 1 < steps) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    segment_fetch<T, BN, DIM, LD, NT>(ks, k, k_rows, k0 + next, keys - next, m, key_heads, key_head, channels, wide_k, tid);
  }
  stage_close();
  stage_wait<1>();
  segment_clean<T, BN, DIM, LDV, NT, true>(vs, mark, tid);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (busy) {
    if (whole_from > s * BN || whole_to < next || segment_marked<BN>(mark, int(thread_index_in_simdgroup))) {
      TILE_UNROLL
      for (int i = 0; i < p.ROWS; i++) {
        TILE_UNROLL
        for (int j = 0; j < p.COLS; j++) {
          TILE_UNROLL
          for (int e = 0; e < 2; e++) {
            int c = p.col(j) + e, at = s * BN + c;
            tile_set(p, i, j, e, at >= low[i] && at < high[i] ? p.get(i, j, e) + mark[c] : -INFINITY);
          }
        }
      }
    }
    TILE_UNROLL
    for (int i = 0; i < p.ROWS; i++) {
      float higher = top[i];
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) higher = max(higher, max(p.get(i, j, 0), p.get(i, j, 1)));
      higher = tile_row_max(higher);
      float shift = higher == -INFINITY ? 0.0f : higher * factor;
      float fade = segment_exp2(top[i] * factor - shift);
      float sum = 0.0f;
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) {
        TILE_UNROLL
        for (int e = 0; e < 2; e++) {
          float t = segment_exp2(p.get(i, j, e) * factor - shift);
          tile_set(p, i, j, e, t);
          sum += t;
        }
      }
      total[i] = total[i] * fade + sum;
      top[i] = higher;
      tile_fade(sums, i, fade);
    }
    tile_apply<LDP, LDV>(sums, p, ps + (PSIZE > VEC ? sm * LDP : 0), vs);
  }
  if (s + 1 < steps) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    segment_fetch<T, BN, DIM, LDV, NT>(vs, v, k_rows, k0 + next, keys - next, m, key_heads, key_head, outs, wide_v, tid);
  }
  stage_close();
}
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  float all = tile_row_sum(total[i]);
  float share = all == 0.0f ? 1.0f : 1.0f / all;
  int row = segment_row(q_rows, q0 + r, r < live, n);
  if (row >= 0) {
    size_t item = size_t(row) * size_t(heads) + size_t(head);
    size_t to = item * size_t(outs);
    TILE_UNROLL
    for (int j = 0; j < sums.COLS; j++) {
      int c = sums.col(j);
      if (c + 1 < outs) stage_put2(y + to + c, sums.get(i, j, 0) * share, sums.get(i, j, 1) * share, outs % 2 == 0);
      else if (c < outs) y[to + size_t(c)] = T(sums.get(i, j, 0) * share);
    }
    if (p.col(0) == 0) lse[item] = all == 0.0f ? -INFINITY : score_log(all) + top[i] * scale[0];
  }
}
