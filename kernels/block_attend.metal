// Attention over the stored blocks of each block row, streaming: scores live in registers. fp32 sums and exponentials.
// in: q[Z, H, M, D] T, k[Z, KH, N, D] T, v[Z, KH, N, DV] T, marks[Z, KH, N] (block_marks.metal), scale[1], bias (Zb, Hb, M, N)
//     float32, q_ids[M], k_ids[N], ptr[LH * R + 1], other[nnz] int32 (key blocks of each block row)
//     dims = {R, br, bc, M, N, H, KH, LH: heads of the layout, 1 or H, nnz, D, DV, bias is read, Zb, Hb, ids, causal, offset}
// out: y[Z, H, M, DV] T, lse[Z, H, M] float32: 0 and -inf where a query has no key.
// grid (32 * WM * R * ceil(br / BM), H, Z).   template: T; DIM >= D, DV, a multiple of 16; BM queries, BN keys of a step;
//           WM simdgroups, each BM / WM queries; EXACT (tile.h)
constexpr int NT = 32 * WM;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int LD = tile_ld<T>(DIM, false);  // q and k: rows of channels
constexpr int LDV = tile_ld<T>(DIM, true);  // v: rows run along the reduced axis
constexpr int LDP = tile_ld<T>(BN, false);
constexpr int PSIZE = ATTEND_REGISTERS && sizeof(T) == 2 ? VEC : BM * LDP;
threadgroup uint4 smem[((BM + BN) * LD + BN * LDV + PSIZE) * int(sizeof(T)) / 16];
threadgroup float mark[BN];
threadgroup T* qs = (threadgroup T*)smem;
threadgroup T* ks = qs + BM * LD;
threadgroup T* vs = ks + BN * LD;
threadgroup T* ps = vs + BN * LDV;
int lines = dims[0], br = dims[1], bc = dims[2], rows = dims[3], columns = dims[4], heads = dims[5], key_heads = dims[6];
int channels = dims[9], outs = dims[10];
int tid = int(thread_index_in_threadgroup);
int sm = int(simdgroup_index_in_threadgroup) * (BM / WM);
int parts = (br + BM - 1) / BM;
int line = int(threadgroup_position_in_grid.x) / parts;
int inside = int(threadgroup_position_in_grid.x) % parts * BM;
int head = int(threadgroup_position_in_grid.y);
int z = int(threadgroup_position_in_grid.z);
int row0 = line * br + inside;
int live = min(br - inside, rows - row0); // queries of this tile
size_t item = size_t(z) * size_t(heads) + size_t(head);
size_t key_item = size_t(z) * size_t(key_heads) + size_t(head * key_heads / heads);
int list = (dims[7] > 1 ? head * lines : 0) + line;
int first = max(0, ptr[list]);
int entries = max(0, min(dims[8], ptr[list + 1]) - first);
int chunks = (bc + BN - 1) / BN;
int steps = entries * chunks;
const device T* qp = q + item * size_t(rows) * size_t(channels);
const device T* kp = k + key_item * size_t(columns) * size_t(channels);
const device T* vp = v + key_item * size_t(columns) * size_t(outs);
const device float* mp = marks + key_item * size_t(columns);
bool wide_k = stage_aligned(qp) && stage_aligned(kp) && channels % VEC == 0;
bool wide_v = stage_aligned(vp) && outs % VEC == 0;
float factor = scale[0];
tile_mma<T, BM / WM, DIM, EXACT> sums;
sums.clear(thread_index_in_simdgroup);
tile_mma<T, BM / WM, BN, EXACT> p;
p.clear(thread_index_in_simdgroup);
float top[p.ROWS], total[p.ROWS];
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  top[i] = -INFINITY;
  total[i] = 0.0f;
}
for (int e = tid; e < BM * DIM / VEC; e += NT) {
  int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC;
  int n = r < live ? channels - c : 0;
  stage_fetch(qs + r * LD + c, qp + (n > 0 ? size_t(row0 + r) * size_t(channels) + size_t(c) : size_t(0)), n, wide_k);
}
// Step -1 fetches the first keys; step s meets keys s and fetches values s, then keys s + 1.
for (int s = -1; s < steps; s++) {
  int at = s < 0 ? 0 : s / chunks;
  int place = s < 0 ? 0 : other[first + at];
  bool known = s >= 0 && place >= 0 && place <= columns / bc;
  int key0 = known ? place * bc + s % chunks * BN : 0;
  int keys = known ? min(bc - s % chunks * BN, columns - key0) : 0;
  if (s >= 0) {
    stage_wait<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int e = tid; e < BN * DIM / VEC; e += NT) {
      int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC;
      int n = r < keys && mp[r < keys ? key0 + r : 0] == 0.0f ? outs - c : 0; // others may hold anything
      stage_fetch(vs + r * LDV + c, vp + (n > 0 ? size_t(key0 + r) * size_t(outs) + size_t(c) : size_t(0)), n, wide_v);
    }
    stage_close();
    for (int e = tid; e < BN; e += NT) mark[e] = e < keys ? mp[key0 + e] : -INFINITY;
    p.clear(thread_index_in_simdgroup);
    p.template mma<DIM, LD, false, LD, true>(qs + sm * LD, ks);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (s + 1 < steps) {
    int next = other[first + (s + 1) / chunks];
    bool there = next >= 0 && next <= columns / bc;
    int from = there ? next * bc + (s + 1) % chunks * BN : 0;
    int count = there ? min(bc - (s + 1) % chunks * BN, columns - from) : 0;
    for (int e = tid; e < BN * DIM / VEC; e += NT) {
      int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC;
      int n = r < count ? channels - c : 0;
      stage_fetch(ks + r * LD + c, kp + (n > 0 ? size_t(from + r) * size_t(channels) + size_t(c) : size_t(0)), n, wide_k);
    }
  }
  stage_close();
  if (s >= 0) {
    TILE_UNROLL
    for (int i = 0; i < p.ROWS; i++) {
      int row = row0 + sm + p.row(i);
      bool query = sm + p.row(i) < live;
      float higher = top[i];
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) {
        TILE_UNROLL
        for (int e = 0; e < 2; e++) {
          int c = p.col(j) + e;
          float t = block_score(p.get(i, j, e) * factor, mark[c], true);
          if (dims[11] + dims[14] + dims[15] != 0 && query && c < keys) {
            if (dims[11] != 0) {
              size_t from = (size_t(dims[12] > 1 ? z : 0) * size_t(dims[13]) + size_t(dims[13] > 1 ? head : 0)) * size_t(rows);
              t = block_score(t, bias[(from + size_t(row)) * size_t(columns) + size_t(key0 + c)], t != -INFINITY);
            }
            if (dims[14] != 0 && q_ids[row] != k_ids[key0 + c]) t = -INFINITY;
            if (dims[15] != 0 && key0 + c > row + dims[16]) t = -INFINITY;
          }
          tile_set(p, i, j, e, t);
          higher = max(higher, t);
        }
      }
      higher = tile_row_max(higher);
      float safe = higher == -INFINITY ? 0.0f : higher;
      float fade = score_exp(top[i] - safe);
      float sum = 0.0f;
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) {
        TILE_UNROLL
        for (int e = 0; e < 2; e++) {
          float t = score_exp(p.get(i, j, e) - safe);
          tile_set(p, i, j, e, t);
          sum += t;
        }
      }
      total[i] = total[i] * fade + sum;
      top[i] = higher;
      tile_fade(sums, i, fade);
    }
    stage_wait<1>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile_apply<LDP, LDV>(sums, p, ps + (PSIZE > VEC ? sm * LDP : 0), vs);
  }
}
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  float all = tile_row_sum(total[i]);
  float share = all == 0.0f ? 1.0f : 1.0f / all;
  if (r < live) {
    size_t to = (item * size_t(rows) + size_t(row0 + r)) * size_t(outs);
    TILE_UNROLL
    for (int j = 0; j < sums.COLS; j++) {
      int c = sums.col(j);
      if (c + 1 < outs) stage_put2(y + to + c, sums.get(i, j, 0) * share, sums.get(i, j, 1) * share, outs % 2 == 0);
      else if (c < outs) y[to + size_t(c)] = T(sums.get(i, j, 0) * share);
    }
    if (p.col(0) == 0) lse[item * size_t(rows) + size_t(row0 + r)] = all == 0.0f ? -INFINITY : score_log(all) + top[i];
  }
}
