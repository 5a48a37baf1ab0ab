// Products of a block-sparse and a dense matrix whose panels neighbouring threadgroups copy once for all of them, where the
// machine can (CLUSTER of them, stage.h): block_tiles.metal's modes 0 and 1 with less to read. Each simdgroup computes
// SIDE x SIDE of the result. A step copies BK reduced elements of LINES lines and of PARTS * SIDE of the dense operand.
// MODE 0 (dsd): lines are block rows, the dense operand is b.   MODE 1 (dds): lines are block columns, it is a.
// in, dims, out: block_tiles.metal, with G = LINES * CLUSTER lines of a group.
// grid (groups * CLUSTER, ceil(width / (PARTS * SIDE)), Z); threads 32 * LINES * PARTS
// template: T; MODE, TA, TB; LINES, PARTS, SIDE, BK, STAGES, CLUSTER; EXACT (tile.h)
constexpr int NT = 32 * LINES * PARTS;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int G = LINES * CLUSTER;
constexpr bool SF = MODE == 0 ? TA != 0 : TB == 0; // a row of the piece of a block runs along the line, else along k
constexpr bool DF = MODE == 0 ? TB == 0 : TA != 0; // a row of the panel runs along the dense axis
constexpr int SROWS = SF ? BK : SIDE, SC = (SF ? SIDE : BK) / VEC;
constexpr int DROWS = DF ? BK : PARTS * SIDE, DC = (DF ? PARTS * SIDE : BK) / VEC;
constexpr int LDS = tile_ld<T>(SC * VEC, SF), LDD = tile_ld<T>(DC * VEC, DF), LDY = SIDE + VEC;
constexpr int SSIZE = SROWS * LDS, STAGE = LINES * SSIZE + DROWS * LDD;
constexpr int SR = NT / SC, OWN = DROWS / CLUSTER; // rows of a pass; rows of a panel that this threadgroup copies
static_assert(NT % SC == 0 && OWN <= NT && STAGES >= 3 && STAGES * STAGE >= LINES * PARTS * SIDE * LDY, "memory of a tile");
threadgroup uint4 smem[STAGES * STAGE * int(sizeof(T)) / 16 + STAGES];
threadgroup T* tiles = (threadgroup T*)smem;
threadgroup ulong* bars = (threadgroup ulong*)(tiles + STAGES * STAGE);
int nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], width = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup);
int rank = stage_rank<CLUSTER>();
int group = int(threadgroup_position_in_grid.x) / CLUSTER;
int dense0 = int(threadgroup_position_in_grid.y) * PARTS * SIDE;
int z = int(threadgroup_position_in_grid.z);
int mine = sg / PARTS, part = sg % PARTS;
int parts = size / SIDE, units = extent / SIDE, places = oextent / osize, chunks = osize / BK;
int leader = line[group * G];
int head = leader < 0 || leader >= units * heads ? 0 : leader / units;
int unit = -1; // of this simdgroup, in its head
int inside[LINES];
TILE_UNROLL
for (int g = 0; g < LINES; g++) {
  int at = line[group * G + rank * LINES + g] - head * units;
  bool there = at >= 0 && at < units;
  inside[g] = there ? at % parts * SIDE : 0;
  if (g == mine && there) unit = at;
}
size_t block_size = size_t(size) * size_t(osize);
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* sp = (MODE == 0 ? a : b) + size_t(z) * size_t(nnz) * block_size;
const device T* dp = (MODE == 0 ? b : a) + item * size_t(oextent) * size_t(width);
bool wide = stage_aligned(sp) && stage_aligned(dp);
bool shared = CLUSTER > 1 && wide;
size_t sld = size_t(SF ? size : osize), dld = size_t(DF ? width : oextent);
int there = min(PARTS * SIDE, width - dense0); // of the panel along the dense axis
int drows = DF ? BK : there, dcols = DF ? there : BK;
dp += DF ? size_t(dense0) : size_t(dense0) * dld;
int first = max(0, ptr[group]);
int entries = max(0, min(dims[8], ptr[group + 1]) - first);
int steps = entries * chunks;
int sr = tid / SC, sc = tid % SC * VEC;
int next[LINES], next_place = -1;
const device T* from[LINES];
const device T* dense = dp;
TILE_UNROLL
for (int g = 0; g < LINES; g++) {
  next[g] = entries > 0 ? block[size_t(first) * size_t(G) + size_t(rank * LINES + g)] : -1;
  from[g] = sp;
}
next_place = entries > 0 ? other[first] : -1;
tile_mma<T, SIDE, SIDE, EXACT> acc;
acc.clear(thread_index_in_simdgroup);
int pe = 0, pc = 0, put = 0, get = 0; // entry and chunk that are fetched next
uint live = 0u, ring = 0u, phase = 0u;
stage_open<CLUSTER>(bars, STAGES, tid);
for (int it = 1 - STAGES; it < steps; it++) {
  if (it >= 0) {
    stage_wait<STAGES - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (shared) stage_await<CLUSTER>(bars + get, phase);
    if ((ring >> uint(get) & 1u) != 0u) {
      const threadgroup T* ss = tiles + get * STAGE + mine * SSIZE;
      const threadgroup T* ds = tiles + get * STAGE + LINES * SSIZE + part * SIDE * (DF ? 1 : LDD);
      if (MODE == 0) acc.template mma<BK, LDS, TA != 0, LDD, TB != 0>(ss, ds);
      else acc.template mma<BK, LDD, TA != 0, LDS, TB != 0>(ds, ss);
    }
    get += 1;
    if (get == STAGES) {
      get = 0;
      phase ^= 1u;
    }
    stage_meet<CLUSTER>(); // all have read the step before
  }
  if (it + STAGES - 1 < steps) {
    if (pc == 0) {
      live = 0u;
      bool known = next_place >= 0 && next_place < places;
      TILE_UNROLL
      for (int g = 0; g < LINES; g++) {
        bool there = known && next[g] >= 0 && next[g] < nnz;
        from[g] = sp + size_t(there ? next[g] : 0) * block_size + size_t(inside[g]) * (SF ? size_t(1) : sld);
        if (there) live |= 1u << uint(g);
      }
      dense = dp + size_t(known ? next_place : 0) * size_t(osize) * (DF ? dld : size_t(1));
      size_t e = size_t(first + min(pe + 1, entries - 1));
      TILE_UNROLL
      for (int g = 0; g < LINES; g++) next[g] = block[e * size_t(G) + size_t(rank * LINES + g)];
      next_place = other[e];
    }
    ring = (ring & ~(1u << uint(put))) | (live >> uint(mine) & 1u) << uint(put);
    threadgroup T* to = tiles + put * STAGE;
    if (shared) {
      if (tid == 0) stage_expect<CLUSTER>(bars + put, drows * dcols * int(sizeof(T)));
      int r = rank * OWN + tid;
      if (tid < OWN && r < drows)
        stage_share<CLUSTER>(to + LINES * SSIZE + r * LDD, dense + size_t(r) * dld, dcols * int(sizeof(T)), bars + put);
    } else {
      for (int e = tid; e < DROWS * DC; e += NT) {
        int r = e / DC, c = e % DC * VEC;
        bool ok = r < drows && c < dcols;
        stage_move(to + LINES * SSIZE + r * LDD + c, ok ? dense + size_t(r) * dld + size_t(c) : dp, ok, wide);
      }
    }
    TILE_UNROLL
    for (int g = 0; g < LINES; g++) {
      if ((live >> uint(g) & 1u) != 0u) {
        TILE_UNROLL
        for (int r = 0; r < SROWS; r += SR) {
          if (SROWS % SR == 0 || r + sr < SROWS)
            stage_move(to + g * SSIZE + (r + sr) * LDS + sc, from[g] + size_t(r + sr) * sld + size_t(sc), true, wide);
        }
      }
      from[g] += size_t(BK) * (SF ? sld : size_t(1));
    }
    dense += size_t(BK) * (DF ? dld : size_t(1));
    pc += 1;
    if (pc == chunks) {
      pc = 0;
      pe += 1;
    }
  }
  stage_close();
  put = put + 1 == STAGES ? 0 : put + 1;
  if (it >= -1) stage_arrive<CLUSTER>();
}
stage_meet<CLUSTER>();
stage_wait<0>();
threadgroup_barrier(mem_flags::mem_threadgroup);
// Results go through threadgroup memory: a simdgroup writes whole rows.
threadgroup T* ys = tiles + sg * SIDE * LDY;
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) stage_pair(ys + acc.row(i) * LDY + acc.col(j), acc.get(i, j, 0), acc.get(i, j, 1));
}
simdgroup_barrier(mem_flags::mem_threadgroup);
int free0 = dense0 + part * SIDE;
size_t row0 = MODE == 0 ? size_t(max(unit, 0)) * size_t(SIDE) : size_t(free0);
size_t column0 = MODE == 0 ? size_t(free0) : size_t(max(unit, 0)) * size_t(SIDE);
size_t ldy = size_t(MODE == 0 ? width : extent);
size_t to = (item * size_t(MODE == 0 ? extent : width) + row0) * ldy + column0;
int rows = unit < 0 ? 0 : MODE == 0 ? SIDE : width - free0, columns = MODE == 0 ? width - free0 : SIDE;
for (int v = lane; v < SIDE * SIDE / VEC; v += 32) {
  int r = v / (SIDE / VEC), c = v % (SIDE / VEC) * VEC;
  if (r < rows && c < columns) *(device uint4*)(y + to + size_t(r) * ldy + size_t(c)) = *(const threadgroup uint4*)(ys + r * LDY + c);
}
