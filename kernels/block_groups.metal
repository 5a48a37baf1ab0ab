// Products with block-sparse matrices whose blocks are multiples of 64, in 16 bits, on machines where four simdgroups multiply
// together (group.h): block_tiles.metal's modes 0 and 1. Four simdgroups compute a line's 64 rows (columns) of 64 * PARTS of the
// dense axis. A step copies BK reduced elements of LINES lines, and a panel of the dense operand that they share. A threadgroup
// computes tile after tile: the next one is copied while the results of the last are written.
// MODE 0 (dsd): lines are block rows, the dense operand is b.   MODE 1 (dds): lines are block columns, it is a; what is computed
// is the result transposed.
// in, dims, out: block_tiles.metal, with G = LINES; and order[rounds * dims[9]]: the tiles of each threadgroup, -1: none. Tiles count
// groups first, then ceil(width / (64 * PARTS)), then Z; dims[9..12]: threadgroups, size of order, tiles of
// an item of the batch and of all.
// grid (dims[9], 1, 1); threads 128 * LINES
// template: T; MODE, TA, TB; LINES; PARTS 1, 2 or 4; BK, 64 on CUDA; STAGES; KEEP: 1, what is read stays in L1; 2, results leave L2 first (CUDA)
constexpr int NT = 128 * LINES;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int N = 64 * PARTS;
constexpr bool SK = MODE == 0 ? TA == 0 : TB != 0; // rows of a piece of a block run along the reduced axis
constexpr bool DK = MODE == 0 ? TB != 0 : TA == 0; // those of the dense operand
constexpr int PIECE = 64 * BK, STAGE = (LINES + PARTS) * PIECE;
constexpr int SLEN = SK ? BK : 64, DLEN = DK ? BK : 64; // elements of a row of a piece
constexpr int SROWS = PIECE / SLEN, DROWS = PIECE / DLEN, SPASS = NT * VEC / SLEN, DPASS = NT * VEC / DLEN;
// Results leave in as many rounds as fit into one buffer: N / ROUNDS of the dense axis at once.
constexpr int ROUNDS = LINES * (MODE == 0 ? 64 * (N / 2 + VEC) : N / 2 * (64 + VEC)) <= STAGE ? 2 : 4, HN = N / ROUNDS;
constexpr int YROWS = MODE == 0 ? 64 : HN, LDY = (MODE == 0 ? HN : 64) + VEC;
static_assert(PARTS > 1 || GROUP_MEMORY == 1, "panels of 64 alone are not tried on CUDA");
static_assert(SPASS % 8 == 0 && DPASS % 8 == 0, "where rows of a piece lie");
static_assert(STAGES >= 2 && STAGES <= 32 && LINES * YROWS * LDY <= STAGE, "a bit for each buffer, and memory of the results");
threadgroup uint4 smem[(STAGES * STAGE + 512) * int(sizeof(T)) / 16];
threadgroup T* tiles = group_base((threadgroup T*)smem);
int groups = dims[0], nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], width = dims[6], heads = dims[7];
int every = dims[9], total = dims[10], of_item = dims[11], most = dims[12]; // most: tiles
int tid = int(thread_index_in_threadgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, mine = int(simdgroup_index_in_threadgroup) / 4;
int parts = size / 64, units = extent / 64, places = oextent / osize, chunks = osize / BK;
size_t block_size = size_t(size) * size_t(osize);
bool wide = stage_aligned(a) && stage_aligned(b); // else plain sums at the end, slow and right
size_t sld = size_t(SK ? osize : size), dld = size_t(DK ? oextent : width), ldy = size_t(MODE == 0 ? width : extent);
int sr = tid * VEC / SLEN, sc = tid * VEC % SLEN; // this thread's first row of a piece, and its columns
int dr = tid * VEC / DLEN, dc = tid * VEC % DLEN;
size_t spass = size_t(SPASS) * sld, dpass = size_t(DPASS) * dld, dfree = DK ? dld : size_t(1);
int sput = group_at<SLEN>(sr, sc), dput = LINES * PIECE + group_at<DLEN>(dr, dc); // rows that a pass is apart lie alike
// The tile that is copied: its entries, the first elements of its lines in their blocks, and what it reads.
int first = 0, entries = 0, exist = 0, inside[LINES]; // exist: of the dense axis, from the tile's first on
const device T* sp = a;
const device T* dp = a;
// The one after it, that one's, and the next entry: read long before they are needed.
int at = int(threadgroup_position_in_grid.x), ahead = order[at], later = at + every < total ? order[at + every] : -1;
int after[LINES], after_first = 0, after_entries = 0, now[LINES], next[LINES], place = 0;
if (ahead >= most) ahead = -1;
int g0 = max(ahead, 0) % groups;
after_first = max(0, ptr[g0]);
after_entries = ahead < 0 ? 0 : max(0, min(dims[8], ptr[g0 + 1]) - after_first);
TILE_UNROLL
for (int g = 0; g < LINES; g++) {
  after[g] = line[g0 * LINES + g];
  next[g] = after_entries > 0 ? block[size_t(after_first) * size_t(LINES) + size_t(g)] : -1;
  now[g] = -1;
  inside[g] = 0;
}
int next_place = after_entries > 0 ? other[after_first] : -1;
tile_mma<T, 16, N, 0> acc;
int pe = 0, pc = 0, put = 0, get = 0; // entry and chunk that are copied next
uint ring = 0u, last = 0u;            // buffers that hold a block of these simdgroups' line; the last step of a tile
int it = 1 - STAGES;
for (int done = int(threadgroup_position_in_grid.x); done < total; done += every) {
  int of = order[done]; // the tile that is multiplied
  if (of < 0 || of >= most) break;
  acc.clear(thread_index_in_simdgroup);
  bool ended = false;
  for (; wide && !ended; it++) {
    if (it >= 0) {
      stage_wait<STAGES - 2>();
      group_wait<0>(acc);
      group_fence();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      group_start(acc);
      if (simd_broadcast_first(ring >> uint(get) & 1u) != 0u)
        group_mma<BK, SK, DK, PIECE>(acc, tiles + get * STAGE + mine * PIECE, tiles + get * STAGE + LINES * PIECE, quarter);
      group_close();
      ended = (last >> uint(get) & 1u) != 0u;
      get = get + 1 == STAGES ? 0 : get + 1;
    }
    if (pe > 0 || pc > 0 || ahead >= 0) {
      if (pc == 0) {
        if (pe == 0) {
          first = after_first;
          entries = after_entries;
          int head = after[0] < 0 || after[0] >= units * heads ? 0 : after[0] / units;
          TILE_UNROLL
          for (int g = 0; g < LINES; g++) inside[g] = max(0, after[g] - head * units) % parts * 64;
          int z = ahead / of_item, dense0 = ahead % of_item / groups * N;
          exist = entries > 0 ? width - dense0 : 0;
          sp = (MODE == 0 ? a : b) + (size_t(z) * size_t(nnz) * block_size + size_t(sr) * sld + size_t(sc));
          dp = (MODE == 0 ? b : a) + ((size_t(z) * size_t(heads) + size_t(head)) * size_t(oextent) * size_t(width) + size_t(dense0) * dfree);
          dp += size_t(dr) * dld + size_t(dc);
          at += every;
          ahead = later < most ? later : -1;
          later = at + every < total ? order[at + every] : -1;
          int g1 = max(ahead, 0) % groups;
          after_first = max(0, ptr[g1]);
          after_entries = ahead < 0 ? 0 : max(0, min(dims[8], ptr[g1 + 1]) - after_first);
          TILE_UNROLL
          for (int g = 0; g < LINES; g++) after[g] = line[g1 * LINES + g];
        }
        bool known = pe < entries && next_place >= 0 && next_place < places;
        place = known ? next_place : 0;
        TILE_UNROLL
        for (int g = 0; g < LINES; g++) now[g] = known && next[g] < nnz ? next[g] : -1;
        bool more = pe + 1 < entries;
        bool any = more || after_entries > 0;
        size_t e = size_t(more ? first + pe + 1 : any ? after_first : 0);
        TILE_UNROLL
        for (int g = 0; g < LINES; g++) next[g] = any ? block[e * size_t(LINES) + size_t(g)] : -1;
        next_place = any ? other[e] : -1;
      }
      ring &= ~(1u << uint(put));
      last &= ~(1u << uint(put));
      threadgroup T* to = tiles + put * STAGE;
      TILE_UNROLL
      for (int g = 0; g < LINES; g++) {
        if (now[g] >= 0) {
          if (g == mine) ring |= 1u << uint(put);
          const device T* from = sp + (size_t(now[g]) * block_size + size_t(SK ? inside[g] * osize + pc * BK : pc * BK * size + inside[g]));
          TILE_UNROLL
          for (int r = 0; r < SROWS; r += SPASS)
            if (SROWS % SPASS == 0 || sr + r < SROWS)
              stage_zero16<(KEEP & 1) != 0>(to + (sput + g * PIECE + r * SLEN), from + size_t(r / SPASS) * spass, true);
        }
      }
      const device T* from = dp + size_t(place * osize + pc * BK) * (DK ? size_t(1) : dld);
      TILE_UNROLL
      for (int s = 0; s < PARTS; s++) {
        TILE_UNROLL
        for (int r = 0; r < DROWS; r += DPASS)
          if (DROWS % DPASS == 0 || dr + r < DROWS)
            stage_zero16<(KEEP & 1) != 0>(to + (dput + s * PIECE + r * DLEN), from + (size_t(r / DPASS) * dpass + size_t(s * 64) * dfree),
                                          DK ? dr + s * 64 + r < exist : dc + s * 64 < exist);
      }
      pc += 1;
      if (pc == chunks) {
        pc = 0;
        pe += 1;
        if (pe >= entries) {
          last |= 1u << uint(put);
          pe = 0;
        }
      }
    }
    stage_close();
    put = put + 1 == STAGES ? 0 : put + 1;
  }
  group_wait<0>(acc);
  // Results go through the buffer that was read last, so that whole rows are written.
  int group = of % groups, leader = line[group * LINES], dense1 = of % of_item / groups * N, z = of / of_item;
  int head = leader < 0 || leader >= units * heads ? 0 : leader / units, unit = line[group * LINES + mine] - head * units;
  size_t item = size_t(z) * size_t(heads) + size_t(head);
  size_t to = item * size_t(extent) * size_t(width) + size_t(max(unit, 0)) * 64 * (MODE == 0 ? ldy : size_t(1)) + size_t(dense1) * (MODE == 0 ? size_t(1) : ldy);
  threadgroup T* ys = tiles + (get == 0 ? STAGES - 1 : get - 1) * STAGE + mine * YROWS * LDY;
  TILE_UNROLL
  for (int first = 0; first < N; first += HN) {
    threadgroup_barrier(mem_flags::mem_threadgroup); // what was there has been read
    if (wide && MODE == 0) {
      TILE_UNROLL
      for (int i = 0; i < acc.ROWS; i++) {
        TILE_UNROLL
        for (int j = 0; j < HN / 8; j++)
          stage_pair(ys + (quarter * 16 + acc.row(i)) * LDY + acc.col(j), acc.get(i, first / 8 + j, 0), acc.get(i, first / 8 + j, 1));
      }
    } else if (wide) {
      group_turned<LDY, HN>(ys, acc, quarter * 16, first);
    }
    for (int e = wide ? 64 * HN : tid % 128; e < 64 * HN; e += 128) {
      int m = e / HN, n = e % HN, in = max(0, unit) % parts * 64 + m;
      const device T* values = (MODE == 0 ? a : b) + size_t(z) * size_t(nnz) * block_size;
      const device T* dense = (MODE == 0 ? b : a) + (item * size_t(oextent) * size_t(width) + size_t(dense1 + first + n) * dfree);
      float sum = 0.0f;
      for (int t = max(0, ptr[group]); t < min(dims[8], ptr[group + 1]) && dense1 + first + n < width; t++) {
        int blk = block[size_t(t) * size_t(LINES) + size_t(mine)], where = other[t];
        if (blk < 0 || blk >= nnz || where < 0 || where >= places) continue;
        for (int k = 0; k < osize; k++)
          sum += float(values[size_t(blk) * block_size + (SK ? size_t(in) * sld + size_t(k) : size_t(k) * sld + size_t(in))]) *
                 float(dense[size_t(where * osize + k) * (DK ? size_t(1) : dld)]);
      }
      ys[MODE == 0 ? m * LDY + n : n * LDY + m] = T(sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    constexpr int COLUMNS = (MODE == 0 ? HN : 64) / VEC; // copies of a row of the result
    for (int v = tid % 128; v < 64 * HN / VEC; v += 128) {
      int r = v / COLUMNS, c = v % COLUMNS * VEC;
      if (unit >= 0 && unit < units && dense1 + first + (MODE == 0 ? c : r) < width)
        stage_put16<(KEEP & 2) != 0>(y + to + size_t(MODE == 0 ? r : first + r) * ldy + size_t(MODE == 0 ? first + c : c), ys + r * LDY + c);
    }
  }
}
