// block_flash.metal on machines where four simdgroups multiply together (group.h), for blocks of multiples of 64.
// in, dims, out: block_flash.metal.
// grid (128 * GROUPS * R * ceil(br / (64 * GROUPS)), H, Z).   template: T; DIM 128 (64: not on CUDA), >= D, DV; GROUPS of 64 queries; BN keys
//           of a step, 64 on CUDA; STAGES; TERMS, MARKS: block_flash.metal
constexpr int NT = 128 * GROUPS, BM = 64 * GROUPS;
constexpr float SMALL = 1e-30f; // keeps sums of large scores finite
constexpr int VEC = 16 / int(sizeof(T));
constexpr int PANEL = BN * 64, KSIZE = BN * DIM, STAGE = 2 * KSIZE; // panels of 64 channels
constexpr int QSIZE = BM * DIM; // queries go to registers from where the last step's keys will be
constexpr int RING = (STAGES - 1) * STAGE + (STAGE > QSIZE ? STAGE : QSIZE);
constexpr int ROW = DIM / VEC; // copies of a row, rows of a pass
constexpr int PASS = NT / ROW;
static_assert(DIM == 128 || GROUP_MEMORY == 1, "CUDA's products of 64 x 64 with values came out wrong");
static_assert(NT % ROW == 0 && BN % PASS == 0 && BM % PASS == 0 && STAGES >= 2, "threads copy equally often");
threadgroup uint4 smem[(RING + 512 + GROUP_MEMORY * BM * BN) * int(sizeof(T)) / 16];
threadgroup T* kv = group_base((threadgroup T*)smem);
threadgroup T* qs = kv + (STAGES - 1) * STAGE;
threadgroup T* ps = kv + RING;
int lines = dims[0], br = dims[1], bc = dims[2], rows = dims[3], columns = dims[4], heads = dims[5], key_heads = dims[6];
int channels = dims[9], outs = dims[10];
int tid = int(thread_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, part = int(simdgroup_index_in_threadgroup) / 4;
int sm = part * 64 + quarter * 16;
int parts = (br + BM - 1) / BM;
int inside = int(threadgroup_position_in_grid.x) % parts * BM;
int head = int(threadgroup_position_in_grid.y);
int z = int(threadgroup_position_in_grid.z);
int line = order[(dims[7] > 1 ? head * lines : 0) + int(threadgroup_position_in_grid.x) / parts];
line = min(max(line, 0), lines - 1);
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
bool wide = stage_aligned(qp) && stage_aligned(kp) && stage_aligned(vp);
int ar = tid / ROW, ac = tid % ROW * VEC;
float factor = scale[0] * 1.4426950408889634f;
tile_mma<T, 16, DIM, 0> sums;
sums.clear(thread_index_in_simdgroup);
tile_mma<T, 16, BN, 0> p;
p.clear(thread_index_in_simdgroup);
float top[p.ROWS], total[p.ROWS], wrong[p.ROWS]; // wrong: 0, or no number
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  top[i] = -INFINITY;
  total[i] = wrong[i] = 0.0f;
}
TILE_UNROLL
for (int i = 0; i < BM / PASS; i++) {
  int r = ar + i * PASS;
  bool there = r < live && ac < channels;
  stage_move(qs + (r / 64 * (DIM / 64) + ac / 64) * 64 * 64 + group_at<64>(r % 64, ac % 64), qp + (there ? size_t(row0 + r) * size_t(channels) + size_t(ac) : size_t(0)), there, wide);
}
stage_close();
stage_wait<0>();
threadgroup_barrier(mem_flags::mem_threadgroup);
group_held<T, DIM> held; // loaded before the loop: CUDA's compiler loses what a branch of the loop loads
held.load(qs + part * 64 * DIM, quarter); // keys come there behind the loop's first barrier
int next = steps > 0 ? other[first] : -1; // key block that is fetched next
int fe = 0, fc = 0;                       // its entry and chunk
int key0 = 0, keys = 0;                   // of the step that is computed; STAGES - 1 steps are on their way
int later0[STAGES], later[STAGES];
float mark[(BN + 31) / 32];
TILE_UNROLL
for (int i = 0; i < STAGES; i++) later0[i] = later[i] = 0;
int put = 0, get = 0;
for (int s = 1 - STAGES; s < steps; s++) {
  if (s >= 0) {
    stage_wait<STAGES - 2>();
    group_fence();
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  TILE_UNROLL
  for (int i = 0; i + 1 < STAGES; i++) {
    later0[i] = later0[i + 1];
    later[i] = later[i + 1];
  }
  if (s + STAGES - 1 < steps) {
    bool known = next >= 0 && next <= columns / bc;
    int from = known ? next * bc + fc * BN : 0;
    int count = known ? min(BN, min(bc - fc * BN, columns - from)) : 0;
    later0[STAGES - 1] = from;
    later[STAGES - 1] = count;
    fc += 1;
    if (fc == chunks) {
      fc = 0;
      fe += 1;
      next = other[first + min(fe, entries - 1)];
    }
    bool kthere = ac < channels, vthere = ac < outs;
    const device T* ksource = kp + (count > 0 && kthere ? size_t(from + ar) * size_t(channels) + size_t(ac) : size_t(0));
    const device T* vsource = vp + (count > 0 && vthere ? size_t(from + ar) * size_t(outs) + size_t(ac) : size_t(0));
    threadgroup T* to = kv + put * STAGE + (ac / 64 * PANEL + group_at<64>(ar, ac % 64)); // rows that a pass is apart lie alike
    if (wide) {
      TILE_UNROLL
      for (int i = 0; i < BN; i += PASS)
        stage_zero16<false>(to + i * 64, ksource + size_t(i) * size_t(channels), kthere && ar + i < count);
      TILE_UNROLL
      for (int i = 0; i < BN; i += PASS)
        stage_zero16<false>(to + KSIZE + i * 64, vsource + size_t(i) * size_t(outs), vthere && ar + i < count);
    } else {
      TILE_ROLLED
      for (int i = 0; i < BN; i += PASS) {
        stage_move(to + i * 64, ksource + size_t(i) * size_t(channels), kthere && ar + i < count, false);
        stage_move(to + KSIZE + i * 64, vsource + size_t(i) * size_t(outs), vthere && ar + i < count, false);
      }
    }
  }
  stage_close();
  put = put + 1 == STAGES ? 0 : put + 1;
  if (s >= 0) {
    key0 = later0[0];
    keys = later[0];
    threadgroup T* ks = kv + get * STAGE;
    threadgroup T* vs = ks + KSIZE;
    get = get + 1 == STAGES ? 0 : get + 1;
    bool marked = !MARKS && keys < BN;
    if (MARKS) { // read now, needed after the product
      TILE_UNROLL
      for (int i = 0; i < (BN + 31) / 32; i++) {
        int c = i * 32 + lane;
        mark[i] = c < keys ? mp[key0 + c] : c < BN ? -INFINITY : 0.0f;
      }
    }
    p.clear(thread_index_in_simdgroup);
    group_start(p);
    group_mma_held<PANEL>(p, held, ks);
    group_close();
    group_wait<0>(p);
    if (MARKS) {
      TILE_UNROLL
      for (int i = 0; i < (BN + 31) / 32; i++) marked = marked || !(mark[i] == 0.0f);
      marked = simd_any(marked); // the same in every simdgroup
    } else { // a score that is infinite or no number makes the sum so
      TILE_UNROLL
      for (int i = 0; i < p.ROWS; i++) {
        TILE_UNROLL
        for (int j = 0; j < p.COLS; j++) wrong[i] = wrong[i] + p.get(i, j, 0) * SMALL + p.get(i, j, 1) * SMALL;
      }
    }
    if (MARKS && marked) {
      for (int e = tid; e < BN * ROW; e += NT) { // values of masked keys may be anything
        int r = e / ROW;
        bool keep = r < keys && mp[key0 + (r < keys ? r : 0)] == 0.0f;
        int c = e % ROW * VEC;
        if (!keep)
          for (int i = 0; i < VEC; i++) vs[c / 64 * PANEL + group_at<64>(r, c % 64) + i] = T(0.0f);
      }
    }
    float unit = factor;
    if (marked || TERMS) {
      unit = 1.0f;
      TILE_UNROLL
      for (int i = 0; i < p.ROWS; i++) {
        int row = row0 + sm + p.row(i);
        bool query = sm + p.row(i) < live;
        TILE_UNROLL
        for (int j = 0; j < p.COLS; j++) {
          TILE_UNROLL
          for (int e = 0; e < 2; e++) {
            int c = p.col(j) + e;
            float added = marked ? (c < keys ? (MARKS ? mp[key0 + (c < keys ? c : 0)] : 0.0f) : -INFINITY) : 0.0f;
            float t = block_score(p.get(i, j, e) * factor, added, true);
            if (TERMS && query && c < keys) {
              if (dims[11] != 0) {
                size_t from = (size_t(dims[12] > 1 ? z : 0) * size_t(dims[13]) + size_t(dims[13] > 1 ? head : 0)) * size_t(rows);
                float b = bias[(from + size_t(row)) * size_t(columns) + size_t(key0 + c)];
                t = block_score(t, b * 1.4426950408889634f, t != -INFINITY);
              }
              if (dims[14] != 0 && q_ids[row] != k_ids[key0 + c]) t = -INFINITY;
              if (dims[15] != 0 && key0 + c > row + dims[16]) t = -INFINITY;
            }
            tile_set(p, i, j, e, t);
          }
        }
      }
    }
    TILE_UNROLL
    for (int i = 0; i < p.ROWS; i++) {
      float most = -INFINITY;
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) most = fmax(most, fmax(p.get(i, j, 0), p.get(i, j, 1)));
      float higher = tile_row_max(fmax(top[i], most * unit));
      float safe = higher == -INFINITY ? 0.0f : higher;
      float fade = score_exp2(top[i] - safe);
      float sum = 0.0f;
      TILE_UNROLL
      for (int j = 0; j < p.COLS; j++) {
        TILE_UNROLL
        for (int e = 0; e < 2; e++) {
          float t = score_exp2(p.get(i, j, e) * unit - safe);
          tile_set(p, i, j, e, t);
          sum += t;
        }
      }
      total[i] = total[i] * fade + sum;
      top[i] = higher;
      tile_fade(sums, i, fade);
    }
    if (MARKS && marked) {
      group_fence();
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    group_start(sums);
    group_apply<PANEL>(sums, p, vs, ps + sm * BN);
    group_close();
    group_wait<0>(sums);
  }
}
TILE_UNROLL
for (int i = 0; i < p.ROWS; i++) {
  int r = sm + p.row(i);
  float all = tile_row_sum(total[i]), none = 0.0f;
  if (!MARKS) {
    none = wrong[i] * 0.0f;
    TILE_UNROLL
    for (int j = 0; j < sums.COLS; j++) none += sums.get(i, j, 0) * 0.0f + sums.get(i, j, 1) * 0.0f;
    none = tile_row_sum(none);
  }
  float share = (all == 0.0f ? 1.0f : 1.0f / all) + none;
  if (r < live) {
    size_t to = (item * size_t(rows) + size_t(row0 + r)) * size_t(outs);
    TILE_UNROLL
    for (int j = 0; j < sums.COLS; j++) {
      int c = sums.col(j);
      if (c < outs) stage_put2(y + to + c, sums.get(i, j, 0) * share, sums.get(i, j, 1) * share, true);
    }
    if (p.col(0) == 0) lse[item * size_t(rows) + size_t(row0 + r)] = all == 0.0f ? -INFINITY : score_log(all) + top[i] * 0.6931471805599453f + none;
  }
}
