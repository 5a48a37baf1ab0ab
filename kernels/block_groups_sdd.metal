// Stored blocks of a product of dense matrices (sdd) where four simdgroups multiply together (group.h), in 16 bits, for blocks of
// multiples of 64. A tile is up to 2 x QUAD pieces of 64 x 64 of two rows of pieces, or 2 * QUAD of one row; four simdgroups
// compute QUAD of them. A step copies BK reduced elements of the tile's rows (op(A)) and columns (op(B)).
// in: a, b T: dense (Z, H, rows, columns), stored transposed where TA, TB
//     line[groups * (1 + 2 * QUAD)] pieces: ptr[groups] (1 or 2) of op(A), numbered through the heads, then of op(B), of the head; -1: none
//     block[groups * 2 * QUAD]: (block * parts of rows + part) * parts of columns + part of columns, -1: none; QUAD of each
//       four simdgroups
//     dims = {groups, nnz, br, bc, M, N, K, heads}
// out: y T (Z, nnz, br, bc)
// grid (groups, 1, Z); threads 256.   template: T; TA, TB; QUAD 1, 2 or 4; BK, 64 on CUDA; STAGES; KEEP: 1, what is read stays in L1; 2, results leave L2 first (CUDA)
constexpr int NT = 256;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int PIECE = 64 * BK, NS = 1 + 2 * QUAD, STAGE = NS * PIECE;
constexpr int ALEN = TA ? 64 : BK, BLEN = TB ? BK : 64; // elements of a row of a piece
constexpr int AROWS = PIECE / ALEN, BROWS = PIECE / BLEN, APASS = NT * VEC / ALEN, BPASS = NT * VEC / BLEN;
constexpr int LDY = 64 + VEC;
static_assert(STAGES >= 3 && STAGES * STAGE >= 2 * QUAD * 64 * LDY, "memory of the results");
threadgroup uint4 smem[(STAGES * STAGE + 512) * int(sizeof(T)) / 16];
threadgroup T* tiles = group_base((threadgroup T*)smem);
int nnz = dims[1], br = dims[2], bc = dims[3], m = dims[4], n = dims[5], depth = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int quarter = int(simdgroup_index_in_threadgroup) % 4, mine = int(simdgroup_index_in_threadgroup) / 4;
int group = int(threadgroup_position_in_grid.x);
int z = int(threadgroup_position_in_grid.z);
int units = m / 64, columns = n / 64, down = br / 64, across = bc / 64;
int leader = line[group * NS];
int head = leader < 0 || leader >= units * heads ? 0 : leader / units;
int na = ptr[group] == 2 ? 2 : 1;
int at[NS];
TILE_UNROLL
for (int s = 0; s < NS; s++) {
  int found = line[group * NS + s];
  if (s < na && found >= 0) found -= head * units;
  at[s] = found >= 0 && found < (s < na ? units : columns) ? found : -1;
}
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* ap = a + item * size_t(m) * size_t(depth);
const device T* bp = b + item * size_t(n) * size_t(depth);
bool wide = stage_aligned(ap) && stage_aligned(bp);
size_t lda = size_t(TA ? m : depth), ldb = size_t(TB ? depth : n);
int ar = tid * VEC / ALEN, ac = tid * VEC % ALEN, brow = tid * VEC / BLEN, bcol = tid * VEC % BLEN;
int steps = (depth + BK - 1) / BK;
tile_mma<T, 16, 64 * QUAD, 0> acc;
acc.clear(thread_index_in_simdgroup);
int put = 0, get = 0;
int sa = na == 2 ? mine : 0, sb = na == 2 ? 2 : 1 + QUAD * mine;
// A step is copied while one is multiplied and another is ready, so its buffer was read two steps ago.
for (int it = 2 - STAGES; it < steps; it++) {
  if (it >= 0) {
    stage_wait<STAGES - 3>();
    group_fence();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    group_start(acc);
    group_mma<BK, TA == 0, TB != 0, PIECE>(acc, tiles + get * STAGE + sa * PIECE, tiles + get * STAGE + sb * PIECE, quarter);
    group_close();
    get = get + 1 == STAGES ? 0 : get + 1;
  }
  if (it + STAGES - 2 < steps) {
    int k0 = (it + STAGES - 2) * BK;
    threadgroup T* to = tiles + put * STAGE;
    TILE_UNROLL
    for (int s = 0; s < NS; s++) {
      if (at[s] >= 0) {
        bool left = s < na;
        int rows = left ? AROWS : BROWS, pass = left ? APASS : BPASS, r0 = left ? ar : brow, c = left ? ac : bcol;
        bool along = left ? TA == 0 : TB != 0; // a row runs along the reduced axis
        size_t ld = left ? lda : ldb;
        const device T* from = left ? ap : bp;
        TILE_UNROLL
        for (int i = 0; i < rows; i += pass) {
          int r = r0 + i;
          if (r >= rows) break;
          int k = k0 + (along ? c : r), other = at[s] * 64 + (along ? r : c);
          bool ok = k < depth;
          const device T* source = from + (ok ? size_t(along ? other : k) * ld + size_t(along ? k : other) : size_t(0));
          threadgroup T* place = to + s * PIECE + (left ? group_at<ALEN>(r, c) : group_at<BLEN>(r, c));
          if (wide) stage_zero16<(KEEP & 1) != 0>(place, source, ok);
          else stage_move(place, source, ok, false);
        }
      }
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
threadgroup T* ys = tiles + mine * QUAD * 64 * LDY;
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) {
    int c = acc.col(j);
    stage_pair(ys + (c / 64 * 64 + quarter * 16 + acc.row(i)) * LDY + c % 64, acc.get(i, j, 0), acc.get(i, j, 1));
  }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int j = 0; j < QUAD; j++) {
  int cell = block[(group * 2 + mine) * QUAD + j];
  if (cell < 0 || cell / (down * across) >= nnz || at[min(sb + j, NS - 1)] < 0 || at[sa] < 0) continue;
  size_t to = (size_t(z) * size_t(nnz) + size_t(cell / (down * across))) * size_t(br) * size_t(bc);
  to += size_t(cell / across % down * 64) * size_t(bc) + size_t(cell % across * 64);
  for (int v = tid % 128; v < 64 * 64 / VEC; v += 128) {
    int r = v / (64 / VEC), c = v % (64 / VEC) * VEC;
    stage_put16<(KEEP & 2) != 0>(y + to + size_t(r) * size_t(bc) + size_t(c), ys + (j * 64 + r) * LDY + c);
  }
}
