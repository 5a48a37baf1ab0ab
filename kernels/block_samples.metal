// Stored blocks of a product of dense matrices (sdd) whose sizes are multiples of 64, in 16 bits, on machines where four
// simdgroups multiply together (group.h). A tile is 2 * EACH places of 64 x 64, anywhere, that lie in at most SLOTS pieces: 64
// rows of op(A) or 64 columns of op(B). A step copies BK reduced elements of each piece; what passes the caches decides.
// in, dims: block_tiles.metal's mode 2, with P = 2 * EACH and SLOTS for P + 1.   out: y[Z, nnz, br, bc] T
// grid (groups, 1, Z); threads 256
// template: T; TA, TB; EACH 1, 2 or 4; SLOTS; BK, 64 on CUDA; STAGES; KEEP: 1, what is read stays in L1 (CUDA)
constexpr int NT = 256, P = 2 * EACH;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int PIECE = 64 * BK, STAGE = SLOTS * PIECE;
constexpr int ALEN = TA != 0 ? 64 : BK, BLEN = TB != 0 ? BK : 64; // elements of a row of a piece
constexpr int AROWS = PIECE / ALEN, BROWS = PIECE / BLEN, APASS = NT * VEC / ALEN, BPASS = NT * VEC / BLEN;
constexpr int LDY = 64 + VEC, N = 64 * EACH;
constexpr int WSLOTS = 2 + EACH, WSTAGES = STAGES * SLOTS / WSLOTS; // of tiles of two rows and the same columns
constexpr bool KA = TA == 0, KB = TB != 0;
static_assert(APASS % 8 == 0 && BPASS % 8 == 0, "where rows of a piece lie");
static_assert(STAGES >= 2 && SLOTS >= WSLOTS && SLOTS < 32 && STAGES * STAGE >= P * 64 * LDY, "memory of the results");
threadgroup uint4 smem[(STAGES * STAGE + 512) * int(sizeof(T)) / 16];
threadgroup T* tiles = group_base((threadgroup T*)smem);
int nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], depth = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, mine = int(simdgroup_index_in_threadgroup) / 4;
int group = int(threadgroup_position_in_grid.x);
int z = int(threadgroup_position_in_grid.z);
int parts = size / 64, oparts = osize / 64, units = extent / 64, ounits = oextent / 64;
int na = min(max(ptr[group], 0), SLOTS);
int leader = line[group * SLOTS];
int head = leader < 0 || leader >= units * heads ? 0 : leader / units;
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* ap = a + item * size_t(depth) * size_t(extent);
const device T* bp = b + item * size_t(depth) * size_t(oextent);
bool wide = stage_aligned(ap) && stage_aligned(bp); // else plain sums at the end, slow and right
const device T* a0 = ap;
const device T* b0 = bp;
int lda = TA != 0 ? extent : depth, ldb = TB != 0 ? depth : oextent;
int ar = tid * VEC / ALEN, ac = tid * VEC % ALEN, br = tid * VEC / BLEN, bc = tid * VEC % BLEN;
ap += size_t(ar) * size_t(lda) + size_t(ac);
bp += size_t(br) * size_t(ldb) + size_t(bc);
size_t afree = TA != 0 ? 1 : size_t(lda), bfree = TB != 0 ? size_t(ldb) : 1; // to the next row of op(A), column of op(B)
size_t astep = size_t(BK) * (TA != 0 ? size_t(lda) : 1), bstep = size_t(BK) * (TB != 0 ? 1 : size_t(ldb));
size_t apass = size_t(APASS) * size_t(lda), bpass = size_t(BPASS) * size_t(ldb);
int aput = group_at<ALEN>(ar, ac), bput = group_at<BLEN>(br, bc); // rows that a pass is apart lie alike
const device T* from[SLOTS];
uint live = 0u; // pieces that exist
TILE_UNROLL
for (int s = 0; s < SLOTS; s++) {
  int at = line[group * SLOTS + s];
  if (s < na) at = at < 0 ? -1 : at - head * units;
  bool there = at >= 0 && at < (s < na ? units : ounits);
  if (there) live |= 1u << uint(s);
  size_t piece = size_t(there ? at : 0) * 64;
  from[s] = s < na ? ap + piece * afree : bp + piece * bfree;
}
int cell[EACH], left[EACH], right[EACH]; // of these four simdgroups: places, and where their pieces are
TILE_UNROLL
for (int c = 0; c < EACH; c++) {
  int p = group * P + mine * EACH + c, where = other[p];
  cell[c] = block[p];
  left[c] = where % 256;
  right[c] = where / 256;
  bool there = cell[c] >= 0 && cell[c] / (parts * oparts) < nnz && left[c] >= 0 && left[c] < na && right[c] >= na && right[c] < SLOTS;
  if (there) there = ((live >> uint(left[c]) & live >> uint(right[c])) & 1u) != 0u;
  if (!there) cell[c] = -1;
  left[c] = simd_broadcast_first(there ? left[c] * PIECE : 0);
  right[c] = simd_broadcast_first(there ? right[c] * PIECE : 0);
}
// Tiles of two rows and the same columns: the places of a row are one product. Loops of their own, for the compiler.
bool row = true;
TILE_UNROLL
for (int c = 0; c < P; c++) {
  int where = other[group * P + c], at = other[group * P + c / EACH * EACH];
  row = row && block[group * P + c] >= 0 && where % 256 == at % 256 && where / 256 == at / 256 + c % EACH;
}
TILE_UNROLL
for (int c = 0; c < EACH; c++) row = row && cell[c] >= 0;
int kind = row && na == 2 && live == (1u << uint(WSLOTS)) - 1u ? 1 : 0;
tile_mma<T, 16, N, 0> acc;
tile_mma<T, 16, 64, 0> one[EACH];
int steps = wide ? (depth + BK - 1) / BK : 0, put = 0, get = 0;
TILE_UNROLL
for (int way = 0; way < 2; way++) {
  if (way == kind) {
    if (way == 1) acc.clear(thread_index_in_simdgroup);
    TILE_UNROLL
    for (int c = 0; c < EACH; c++)
      if (way == 0) one[c].clear(thread_index_in_simdgroup);
    int deep = way == 1 ? WSTAGES : STAGES, span = way == 1 ? WSLOTS * PIECE : STAGE;
    for (int it = 1 - deep; it < steps; it++) {
      if (it >= 0) {
        if (way == 1) stage_wait<WSTAGES - 2>();
        else stage_wait<STAGES - 2>();
        if (way == 1) group_wait<0>(acc);
        TILE_UNROLL
        for (int c = 0; c < EACH; c++)
          if (way == 0) group_wait<0>(one[c]);
        group_fence();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup T* now = tiles + get * span;
        if (way == 1) {
          group_start(acc);
          group_mma<BK, KA, KB, PIECE>(acc, now + left[0], now + right[0], quarter);
        } else {
          TILE_UNROLL
          for (int c = 0; c < EACH; c++) group_start(one[c]);
          TILE_UNROLL
          for (int c = 0; c < EACH; c++)
            if (simd_broadcast_first(cell[c]) >= 0) group_mma<BK, KA, KB, PIECE>(one[c], now + left[c], now + right[c], quarter);
        }
        group_close();
        get = get + 1 == deep ? 0 : get + 1;
      }
      if (it + deep - 1 < steps) {
        int k0 = (it + deep - 1) * BK;
        threadgroup T* to = tiles + put * span;
        TILE_UNROLL
        for (int s = 0; s < SLOTS; s++) {
          if (way == 1 ? s < WSLOTS : (live >> uint(s) & 1u) != 0u) {
            if (way == 1 ? s < 2 : s < na) {
              TILE_UNROLL
              for (int r = 0; r < AROWS; r += APASS) {
                bool ok = k0 + (TA != 0 ? ar + r : ac) < depth;
                if (AROWS % APASS == 0 || ar + r < AROWS)
                  stage_zero16<(KEEP & 1) != 0>(to + (aput + s * PIECE + r * ALEN), from[s] + size_t(r / APASS) * apass, ok);
              }
              from[s] += astep;
            } else {
              TILE_UNROLL
              for (int r = 0; r < BROWS; r += BPASS) {
                bool ok = k0 + (TB != 0 ? bc : br + r) < depth;
                if (BROWS % BPASS == 0 || br + r < BROWS)
                  stage_zero16<(KEEP & 1) != 0>(to + (bput + s * PIECE + r * BLEN), from[s] + size_t(r / BPASS) * bpass, ok);
              }
              from[s] += bstep;
            }
          }
        }
      }
      stage_close();
      put = put + 1 == deep ? 0 : put + 1;
    }
    // Results go through threadgroup memory, so that whole rows are written.
    if (way == 1) group_wait<0>(acc);
    TILE_UNROLL
    for (int c = 0; c < EACH; c++)
      if (way == 0) group_wait<0>(one[c]);
    stage_wait<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup T* ys = tiles + (mine * EACH * 64 + quarter * 16) * LDY;
    TILE_UNROLL
    for (int i = 0; i < acc.ROWS; i++) {
      TILE_UNROLL
      for (int j = 0; j < acc.COLS; j++) {
        int n = acc.col(j);
        if (way == 1) stage_pair(ys + (n / 64 * 64 + acc.row(i)) * LDY + n % 64, acc.get(i, j, 0), acc.get(i, j, 1));
      }
      TILE_UNROLL
      for (int c = 0; c < EACH; c++) {
        TILE_UNROLL
        for (int j = 0; j < one[c].COLS; j++)
          if (way == 0) stage_pair(ys + (c * 64 + one[c].row(i)) * LDY + one[c].col(j), one[c].get(i, j, 0), one[c].get(i, j, 1));
      }
    }
  }
}
if (!wide) threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = wide ? NT * 64 * 64 : tid; e < P * 64 * 64; e += NT) {
  int p = group * P + e / (64 * 64), m = e / 64 % 64, n = e % 64, sa = other[p] % 256, sb = other[p] / 256;
  float sum = 0.0f;
  if (block[p] >= 0 && sa >= 0 && sa < na && sb >= na && sb < SLOTS && (live >> uint(sa) & live >> uint(sb) & 1u) != 0u) {
    const device T* row = a0 + size_t((line[group * SLOTS + sa] - head * units) * 64 + m) * afree;
    const device T* column = b0 + size_t(line[group * SLOTS + sb] * 64 + n) * bfree;
    for (int k = 0; k < depth; k++)
      sum += float(row[size_t(k) * (TA != 0 ? size_t(lda) : 1)]) * float(column[size_t(k) * (TB != 0 ? 1 : size_t(ldb))]);
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
