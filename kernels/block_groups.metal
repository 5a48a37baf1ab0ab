// Products with block-sparse matrices whose blocks are multiples of 64, in 16 bits, on machines where four simdgroups multiply
// together (group.h): block_tiles.metal's modes 0 and 1. Four simdgroups compute a line's 64 rows (columns) of 64 * PARTS of the
// dense axis. A step copies BK reduced elements of LINES lines, and a panel of the dense operand that they share.
// MODE 0 (dsd): lines are block rows, the dense operand is b.   MODE 1 (dds): lines are block columns, it is a; what is computed
// is the result transposed.
// in, dims, out: block_tiles.metal, with G = LINES.
// grid (groups, ceil(width / (64 * PARTS)), Z); threads 128 * LINES
// template: T; MODE, TA, TB; LINES; PARTS 1, 2 or 4; BK, 64 on CUDA; STAGES; KEEP: 1, what is read stays in L1; 2, results leave L2 first (CUDA)
constexpr int NT = 128 * LINES;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int N = 64 * PARTS;
constexpr bool SK = MODE == 0 ? TA == 0 : TB != 0; // rows of a piece of a block run along the reduced axis
constexpr bool DK = MODE == 0 ? TB != 0 : TA == 0; // those of the dense operand
constexpr int PIECE = 64 * BK, STAGE = (LINES + PARTS) * PIECE;
constexpr int SLEN = SK ? BK : 64, DLEN = DK ? BK : 64; // elements of a row of a piece
constexpr int SROWS = PIECE / SLEN, DROWS = PIECE / DLEN, SPASS = NT * VEC / SLEN, DPASS = NT * VEC / DLEN;
constexpr int LDY = (MODE == 0 ? N : 64) + VEC;
static_assert(PARTS > 1 || GROUP_MEMORY == 1, "panels of 64 alone are not tried on CUDA");
static_assert(STAGES >= 3 && STAGES * STAGE >= LINES * (MODE == 0 ? 64 : N) * LDY, "memory of the results");
threadgroup uint4 smem[(STAGES * STAGE + 512) * int(sizeof(T)) / 16];
threadgroup T* tiles = group_base((threadgroup T*)smem);
int nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], width = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, mine = int(simdgroup_index_in_threadgroup) / 4;
int group = int(threadgroup_position_in_grid.x);
int dense0 = int(threadgroup_position_in_grid.y) * N;
int z = int(threadgroup_position_in_grid.z);
int parts = size / 64, units = extent / 64, places = oextent / osize, chunks = osize / BK;
int leader = line[group * LINES];
int head = leader < 0 || leader >= units * heads ? 0 : leader / units;
int unit = -1; // of these four simdgroups, in its head
int inside[LINES];
TILE_UNROLL
for (int g = 0; g < LINES; g++) {
  int at = line[group * LINES + g] - head * units;
  bool there = at >= 0 && at < units;
  inside[g] = there ? at % parts * 64 : 0;
  if (g == mine && there) unit = at;
}
size_t block_size = size_t(size) * size_t(osize);
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* sp = (MODE == 0 ? a : b) + size_t(z) * size_t(nnz) * block_size;
const device T* dp = (MODE == 0 ? b : a) + item * size_t(oextent) * size_t(width);
bool wide = stage_aligned(sp) && stage_aligned(dp);
size_t sld = size_t(SK ? osize : size), dld = size_t(DK ? oextent : width);
int sr = tid * VEC / SLEN, sc = tid * VEC % SLEN; // this thread's first row of a piece, and its columns
int dr = tid * VEC / DLEN, dc = tid * VEC % DLEN;
int first = max(0, ptr[group]);
int entries = max(0, min(dims[8], ptr[group + 1]) - first);
int steps = entries * chunks;
int now[LINES], next[LINES], place = 0; // blocks of the entry that is fetched, and of the one after
TILE_UNROLL
for (int g = 0; g < LINES; g++) {
  now[g] = -1;
  next[g] = entries > 0 ? block[size_t(first) * size_t(LINES) + size_t(g)] : -1;
}
int next_place = entries > 0 ? other[first] : -1;
tile_mma<T, 16, N, 0> acc;
acc.clear(thread_index_in_simdgroup);
int pe = 0, pc = 0, put = 0, get = 0; // entry and chunk that are fetched next
uint ring = 0u;                       // which buffers hold a block of these simdgroups' line
// A step is copied while one is multiplied and another is ready, so its buffer was read two steps ago.
for (int it = 2 - STAGES; it < steps; it++) {
  if (it >= 0) {
    stage_wait<STAGES - 3>();
    group_fence();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    group_start(acc);
    if (simd_broadcast_first(ring >> uint(get) & 1u) != 0u)
      group_mma<BK, SK, DK, PIECE>(acc, tiles + get * STAGE + mine * PIECE, tiles + get * STAGE + LINES * PIECE, quarter);
    group_close();
    get = get + 1 == STAGES ? 0 : get + 1;
  }
  if (it + STAGES - 2 < steps) {
    if (pc == 0) {
      bool known = next_place >= 0 && next_place < places;
      place = known ? next_place : 0;
      TILE_UNROLL
      for (int g = 0; g < LINES; g++) now[g] = known && next[g] < nnz ? next[g] : -1;
      size_t e = size_t(first + min(pe + 1, entries - 1));
      TILE_UNROLL
      for (int g = 0; g < LINES; g++) next[g] = block[e * size_t(LINES) + size_t(g)];
      next_place = other[e];
    }
    ring &= ~(1u << uint(put));
    threadgroup T* to = tiles + put * STAGE;
    TILE_UNROLL
    for (int g = 0; g < LINES; g++) {
      if (now[g] >= 0) {
        if (g == mine) ring |= 1u << uint(put);
        const device T* from = sp + size_t(now[g]) * block_size + size_t(sc);
        from += SK ? size_t(inside[g] + sr) * sld + size_t(pc * BK) : size_t(pc * BK + sr) * sld + size_t(inside[g]);
        TILE_UNROLL
        for (int r = 0; r < SROWS; r += SPASS) {
          if (SROWS % SPASS != 0 && sr + r >= SROWS) break;
          threadgroup T* at = to + g * PIECE + group_at<SLEN>(sr + r, sc);
          if (wide) stage_zero16<(KEEP & 1) != 0>(at, from + size_t(r) * sld, true);
          else stage_move(at, from + size_t(r) * sld, true, false);
        }
      }
    }
    const device T* from = dp + size_t(place * osize + pc * BK) * (DK ? size_t(1) : dld);
    TILE_UNROLL
    for (int s = 0; s < PARTS; s++) {
      TILE_UNROLL
      for (int i = 0; i < DROWS; i += DPASS) {
        if (DROWS % DPASS != 0 && dr + i >= DROWS) break;
        int r = dr + i, along = dense0 + s * 64 + (DK ? r : dc);
        bool ok = along < width;
        const device T* source = from + (ok ? DK ? size_t(along) * dld + size_t(dc) : size_t(r) * dld + size_t(along) : size_t(0));
        threadgroup T* at = to + (LINES + s) * PIECE + group_at<DLEN>(r, dc);
        if (wide) stage_zero16<(KEEP & 1) != 0>(at, source, ok);
        else stage_move(at, source, ok, false);
      }
    }
    pc += 1;
    if (pc == chunks) {
      pc = 0;
      pe += 1;
    }
  }
  stage_close();
  put = put + 1 == STAGES ? 0 : put + 1;
  if (it >= 0) group_wait<1>(acc);
}
group_wait<0>(acc);
stage_wait<0>();
threadgroup_barrier(mem_flags::mem_threadgroup);
// Results go through threadgroup memory, so that whole rows are written.
threadgroup T* ys = tiles + mine * (MODE == 0 ? 64 : N) * LDY;
if (MODE == 0) {
  TILE_UNROLL
  for (int i = 0; i < acc.ROWS; i++) {
    TILE_UNROLL
    for (int j = 0; j < acc.COLS; j++)
      stage_pair(ys + (quarter * 16 + acc.row(i)) * LDY + acc.col(j), acc.get(i, j, 0), acc.get(i, j, 1));
  }
} else {
  group_turned<LDY>(ys, acc, quarter * 16);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
size_t ldy = size_t(MODE == 0 ? width : extent);
size_t to = item * size_t(extent) * size_t(width) + size_t(max(unit, 0)) * 64 * (MODE == 0 ? ldy : size_t(1)) + size_t(dense0) * (MODE == 0 ? size_t(1) : ldy);
constexpr int COLUMNS = (MODE == 0 ? N : 64) / VEC; // copies of a row of the result
for (int v = tid % 128; v < 64 * N / VEC; v += 128) {
  int r = v / COLUMNS, c = v % COLUMNS * VEC;
  if (unit >= 0 && dense0 + (MODE == 0 ? c : r) < width)
    stage_put16<(KEEP & 2) != 0>(y + to + size_t(r) * ldy + size_t(c), ys + r * LDY + c);
}
