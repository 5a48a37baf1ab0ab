// Stored blocks of a product of dense matrices (sdd) whose sizes are multiples of 64, in 16 bits, on machines where four
// simdgroups multiply together (group.h). A threadgroup computes 2 * EACH places of 64 x 64, anywhere, that lie in at most SLOTS
// pieces: 64 rows of op(A) or 64 columns of op(B). A step copies BK reduced elements of each piece; pieces that all CLUSTER
// threadgroups of a cluster read are copied once for all of them. What passes the caches decides.
// in: a, b T: dense (Z, H, rows, columns), stored transposed where TA, TB; line[threadgroups * SLOTS] pieces of all heads, 2 * i of
//     op(A), 2 * i + 1 of op(B), -1: none; ptr[clusters] which slots are alike in the cluster, a bit each: those of its first
//     threadgroup count; block[threadgroups * P], P = 2 * EACH, (block * parts + part of rows) * parts of columns + part of columns,
//     -1: none; other[threadgroups * P] the slots of its pieces, of op(A) + 256 * of op(B)
//     dims: block_tiles.metal's mode 2   out: y[Z, nnz, br, bc] T; maps[64 * threadgroups * Z] uint is for the kernel itself (group.h)
// grid (threadgroups, 1, Z); threads 256 and those that copy
// template: T; TA, TB; EACH 1, 2 or 4; SLOTS; BK, 64 on CUDA; STAGES; CLUSTER 1 or 2
constexpr int NT = 256, P = 2 * EACH;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int PIECE = 64 * BK, STAGE = SLOTS * PIECE;
constexpr int ALEN = TA != 0 ? 64 : BK, BLEN = TB != 0 ? BK : 64; // elements of a row of a piece
constexpr int AROWS = PIECE / ALEN, BROWS = PIECE / BLEN;
constexpr int LDY = 64 + VEC;
constexpr bool KA = TA == 0, KB = TB != 0;
static_assert(STAGES >= 2 && STAGES <= 8 && SLOTS < 32 && STAGES * STAGE >= P * 64 * LDY, "memory of the results");
threadgroup uint4 smem[(STAGES * STAGE + 768) * int(sizeof(T)) / 16];
threadgroup T* tiles = group_base((threadgroup T*)smem);
threadgroup ulong* bars = (threadgroup ulong*)(tiles + STAGES * STAGE);
threadgroup uint* made = (threadgroup uint*)(tiles + STAGES * STAGE + 64);
int nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], depth = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, mine = int(simdgroup_index_in_threadgroup) / 4;
int group = int(threadgroup_position_in_grid.x), rank = group % CLUSTER;
int z = int(threadgroup_position_in_grid.z), batch = int(threadgroups_per_grid.z);
int parts = size / 64, oparts = osize / 64, units = extent / 64, ounits = oextent / 64;
bool wide = stage_aligned(a) && stage_aligned(b); // else plain sums at the end, slow and right
panel_open<CLUSTER, STAGES>(bars, 2);
size_t map = size_t(z * int(threadgroups_per_grid.x) + group) * 64;
panel_map<T> left = panel_matrix(made, maps + map, a, batch * heads, TA != 0 ? depth : extent, TA != 0 ? extent : depth);
panel_map<T> right = panel_matrix(made + 32, maps + map + 32, b, batch * heads, TB != 0 ? oextent : depth, TB != 0 ? depth : oextent);
uint shared = CLUSTER > 1 ? uint(ptr[group / CLUSTER]) : 0u, live = 0u, second = 0u; // second: pieces of op(B)
int item[SLOTS], place[SLOTS];                                               // head of all, first row or column
TILE_UNROLL
for (int s = 0; s < SLOTS; s++) {
  int at = line[((shared >> uint(s) & 1u) != 0u ? group - rank : group) * SLOTS + s], all = at % 2 == 0 ? units : ounits;
  bool there = at >= 0 && at / 2 < heads * all;
  item[s] = there ? z * heads + at / 2 / all : 0;
  place[s] = there ? at / 2 % all * 64 : 0;
  live |= (there ? 1u : 0u) << uint(s);
  second |= (there && at % 2 != 0 ? 1u : 0u) << uint(s);
}
int any = 0; // a piece that exists
while (any + 1 < SLOTS && (live >> uint(any) & 1u) == 0u) any++;
int cell[EACH], from[EACH], with[EACH]; // of these four simdgroups: places, and where their pieces are
TILE_UNROLL
for (int c = 0; c < EACH; c++) {
  int p = group * P + mine % 2 * EACH + c; // those who copy: any
  cell[c] = mine < 2 ? block[p] : -1;
  from[c] = other[p] % 256;
  with[c] = other[p] / 256;
  bool there = cell[c] >= 0 && cell[c] / (parts * oparts) < nnz && from[c] >= 0 && from[c] < SLOTS && with[c] >= 0 && with[c] < SLOTS;
  if (there) there = (live >> uint(from[c]) & live >> uint(with[c]) & ~second >> uint(from[c]) & second >> uint(with[c]) & 1u) != 0u;
  if (!there) cell[c] = -1;
  from[c] = simd_broadcast_first(there ? from[c] : any) * PIECE; // a product that nobody stores
  with[c] = simd_broadcast_first(there ? with[c] : any) * PIECE;
}
int steps = wide ? (depth + BK - 1) / BK : 0, bytes = int(popcount(live)) * PIECE * int(sizeof(T));
// One simdgroup copies while the others multiply, or (Metal) all do both.
TILE_UNROLL
for (int role = 0; role < PANEL_ROLES; role++) {
  if (PANEL_ROLES == 2 && panel_role() != role) continue;
  bool copies = role == PANEL_ROLES - 1, multiplies = role == 0;
  int slot = 0, it = 0;
  uint phases = 0u, rooms = 0u; // of each buffer's bars
  tile_mma<T, 16, 64, 0> acc[EACH];
  TILE_UNROLL
  for (int c = 0; c < EACH && multiplies; c++) acc[c].clear(thread_index_in_simdgroup);
  if (steps > 0) { // not a loop that may be skipped: the compiler would let products wait for each other
    do {
      threadgroup T* now = tiles + slot * STAGE;
      if (copies) {
        if (it >= STAGES) {
          panel_room(bars + STAGES + slot, rooms >> uint(slot) & 1u);
          rooms ^= 1u << uint(slot);
        }
        panel_expect(bars + slot, bytes);
        TILE_UNROLL
        for (int s = 0; s < SLOTS; s++) {
          if ((live >> uint(s) & 1u) == 0u) continue;
          bool of_a = (second >> uint(s) & 1u) == 0u, all = (shared >> uint(s) & 1u) != 0u, along = of_a ? TA != 0 : TB == 0;
          int row = along ? it * BK : place[s], column = along ? place[s] : it * BK;
          bool asks = !all || s % CLUSTER == rank;
          if (of_a) panel_copy<ALEN, AROWS, CLUSTER>(now + s * PIECE, left, item[s], row, column, bars + slot, all, asks, tid, NT);
          else panel_copy<BLEN, BROWS, CLUSTER>(now + s * PIECE, right, item[s], row, column, bars + slot, all, asks, tid, NT);
        }
      }
      if (multiplies) {
        panel_wait(bars + slot, phases >> uint(slot) & 1u);
        phases ^= 1u << uint(slot);
        group_start(acc[0]); // and the others: none has changed since it was waited for
        TILE_UNROLL
        for (int c = 0; c < EACH; c++) group_mma<BK, KA, KB, PIECE>(acc[c], now + from[c], now + with[c], quarter);
        group_close();
        group_wait<1>(acc[0]);
        if (it > 0) panel_free<CLUSTER>(bars + STAGES + (slot == 0 ? STAGES - 1 : slot - 1));
      }
      slot = slot + 1 == STAGES ? 0 : slot + 1;
      it++;
    } while (it < steps);
    TILE_UNROLL
    for (int c = 0; c < EACH && multiplies; c++) group_wait<0>(acc[c]);
  }
  if (!multiplies) continue;
  panel_gather<NT>(); // all have read the buffers
  // Results go through threadgroup memory, so that whole rows are written.
  TILE_UNROLL
  for (int c = 0; c < EACH; c++) {
    threadgroup T* ys = tiles + ((mine * EACH + c) * 64 + quarter * 16) * LDY;
    TILE_UNROLL
    for (int i = 0; i < acc[c].ROWS; i++) {
      TILE_UNROLL
      for (int j = 0; j < acc[c].COLS; j++) stage_pair(ys + acc[c].row(i) * LDY + acc[c].col(j), acc[c].get(i, j, 0), acc[c].get(i, j, 1));
    }
  }
}
panel_close<CLUSTER>(); // none ends while another copies to it
for (int e = wide || tid >= NT ? P * 64 * 64 : tid; e < P * 64 * 64; e += NT) {
  int p = group * P + e / (64 * 64), m = e / 64 % 64, n = e % 64, sa = other[p] % 256, sb = other[p] / 256;
  float sum = 0.0f;
  bool there = block[p] >= 0 && sa >= 0 && sa < SLOTS && sb >= 0 && sb < SLOTS;
  if (there && (live >> uint(sa) & live >> uint(sb) & ~second >> uint(sa) & second >> uint(sb) & 1u) != 0u) {
    int la = line[((shared >> uint(sa) & 1u) != 0u ? group - rank : group) * SLOTS + sa] / 2;
    int lb = line[((shared >> uint(sb) & 1u) != 0u ? group - rank : group) * SLOTS + sb] / 2;
    size_t am = size_t(la % units * 64 + m), bn = size_t(lb % ounits * 64 + n);
    const device T* ap = a + size_t(z * heads + la / units) * size_t(depth) * size_t(extent);
    const device T* bp = b + size_t(z * heads + lb / ounits) * size_t(depth) * size_t(oextent);
    for (int k = 0; k < depth; k++)
      sum += float(ap[TA != 0 ? size_t(k) * size_t(extent) + am : am * size_t(depth) + size_t(k)]) *
             float(bp[TB != 0 ? bn * size_t(depth) + size_t(k) : size_t(k) * size_t(oextent) + bn]);
  }
  tiles[(e / 64) * LDY + n] = T(sum);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
TILE_UNROLL
for (int c = 0; c < EACH; c++) {
  if (cell[c] >= 0) {
    const threadgroup T* ys = tiles + (mine * EACH + c) * 64 * LDY;
    size_t to = (size_t(z) * size_t(nnz) + size_t(cell[c] / (parts * oparts))) * size_t(size) * size_t(osize);
    to += size_t(cell[c] / oparts % parts * 64) * size_t(osize) + size_t(cell[c] % oparts * 64);
    for (int v = tid % 128; v < 64 * 64 / VEC; v += 128) {
      int r = v / (64 / VEC), n = v % (64 / VEC) * VEC;
      *(device uint4*)(y + to + size_t(r) * size_t(osize) + size_t(n)) = *(const threadgroup uint4*)(ys + r * LDY + n);
    }
  }
}
