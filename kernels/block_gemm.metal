// Products with block-sparse matrices, output stationary, fp32 sums. A step multiplies BK elements of the reduced axis.
// MODE 0 (dsd): y = op(S) op(B); a line is a block row of op(S), listed its blocks.   MODE 1 (dds): y = op(A) op(S), a line
// is a block column of op(S).   MODE 2 (sdd): y = stored blocks of op(A) op(B); a line is a block row, listed its blocks.
// in: a, b T: dense (Z, H, rows, columns) or values (Z, nnz, br, bc), stored transposed where TA, TB
//     ptr[H * lines + 1], block, other int32: MODE 0, 1: entries of each line; block and place along the reduced axis
//       MODE 2: ptr[groups] the line of a group; block[groups * G], other[groups * G]: block * pieces + piece, column block,
//       -1: none; G = BN / SUB
//     dims = {lines, nnz, line size, other size, line extent, other extent, dense width, heads, pieces, groups}
//       dense width: MODE 0 columns of op(B), 1 rows of op(A), 2 the reduced axis; sizes and extents in elements
// out: y T: (Z, H, M, N) or (Z, nnz, br, bc).
// grid MODE 0: (lines * ceil(line size / BM), ceil(width / BN), Z * H)   1: (lines * ceil(line size / BN), ceil(width / BM),
//   Z * H)   2: (groups, ceil(line size / BM), Z); threads 32 * WM * WN
// template: T; MODE, TA, TB; BM, BN, WM, WN, SUB (MODE 2: columns of the tile for one block), STAGES; EXACT (tile.h)
constexpr int NT = 32 * WM * WN;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int BK = 64 / int(sizeof(T));
constexpr int AROWS = TA ? BK : BM;
constexpr int ACOLS = TA ? BM : BK;
constexpr int BROWS = TB ? BN : BK;
constexpr int BCOLS = TB ? BK : BN;
constexpr int LDA = tile_ld<T>(ACOLS, TA != 0);
constexpr int LDB = tile_ld<T>(BCOLS, TB == 0);
constexpr int ASIZE = AROWS * LDA;
constexpr int BSIZE = BROWS * LDB;
threadgroup uint4 smem[STAGES * (ASIZE + BSIZE) * int(sizeof(T)) / 16];
threadgroup T* as = (threadgroup T*)smem;
threadgroup T* bs = as + STAGES * ASIZE;
int lines = dims[0], nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], width = dims[6];
int heads = dims[7], pieces = dims[8];
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int gx = int(threadgroup_position_in_grid.x);
int gy = int(threadgroup_position_in_grid.y);
int zh = int(threadgroup_position_in_grid.z);
int sm = (sg / WN) * (BM / WM), sn = (sg % WN) * (BN / WN);
// Where this tile lies: `line` of `head`, `inside` elements past the line's start; dense0 along the dense operand's free axis.
int along = MODE == 1 ? BN : BM;
int parts = MODE == 2 ? 1 : (size + along - 1) / along;
int part = MODE == 2 ? gy : gx % parts;
int line = MODE == 2 ? ptr[gx] : gx / parts;
if (line < 0 || line >= lines * heads) line = 0; // as every index below: never outside the arrays
int z = MODE == 2 ? zh : zh / heads;
int head = MODE == 2 ? line / lines : zh % heads;
if (MODE == 2) line = line % lines;
int inside = part * along;
int dense0 = MODE == 0 ? gy * BN : gy * BM;
int at_line = line * size + inside;
int limit = min(size - inside, extent - at_line); // elements of the line in this tile and in the matrix
int first = 0, entries = 1, depth = width;        // reduced elements of an entry
if (MODE != 2) {
  first = max(0, ptr[head * lines + line]);
  entries = max(0, min(nnz, ptr[head * lines + line + 1]) - first);
  depth = osize;
}
int chunks = (depth + BK - 1) / BK;
int steps = entries * chunks;
// Rows and columns of the dense matrices, as stored.
int inner = MODE == 2 ? width : oextent; // the whole reduced axis
int lda = MODE == 0 ? (TA ? size : osize) : MODE == 1 ? (TA ? width : inner) : (TA ? extent : inner);
int ldb = MODE == 1 ? (TB ? osize : size) : MODE == 0 ? (TB ? inner : width) : (TB ? inner : oextent);
size_t block_size = size_t(size) * size_t(osize);
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* ap = MODE == 0 ? a : a + item * size_t(inner) * size_t(MODE == 1 ? width : extent);
const device T* bp = MODE == 1 ? b : b + item * size_t(inner) * size_t(MODE == 0 ? width : oextent);
bool awide = stage_aligned(ap) && lda % VEC == 0 && (MODE != 0 || block_size % VEC == 0);
bool bwide = stage_aligned(bp) && ldb % VEC == 0 && (MODE != 1 || block_size % VEC == 0);
if (MODE != 1 && TA) awide = awide && at_line % VEC == 0 && inside % VEC == 0;
if (MODE == 1 && !TB) bwide = bwide && inside % VEC == 0;
if (MODE == 0 && TB) bwide = bwide && osize % VEC == 0;
if (MODE == 1 && !TA) awide = awide && osize % VEC == 0;
if (MODE == 2 && !TB) bwide = bwide && osize % VEC == 0;
tile_mma<T, BM / WM, BN / WN, EXACT> acc;
acc.clear(thread_index_in_simdgroup);
int pe = 0, pc = 0; // entry and chunk that are fetched next
int put = 0, get = 0;
for (int it = 1 - STAGES; it < steps; it++) {
  bool more = it + STAGES - 1 < steps;
  if (it >= 0) {
    stage_wait<STAGES - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (more) {
    int k0 = pc * BK;
    int blk = MODE == 2 ? 0 : block[first + pe];
    int place = MODE == 2 ? 0 : other[first + pe];
    bool known = blk >= 0 && blk < nnz && place >= 0 && place <= oextent / osize;
    if (!known && MODE != 2) place = 0;
    // Reduced elements left from k0 on, inside the entry and the matrix.
    int kleft = MODE == 2 ? width - k0 : min(osize - k0, oextent - place * osize - k0);
    int kat = place * osize + k0;
    if (!known && MODE != 2) kleft = 0;
    size_t values = (size_t(z) * size_t(nnz) + size_t(kleft > 0 ? blk : 0)) * block_size;
    for (int v = tid; v < AROWS * ACOLS / VEC; v += NT) {
      int r = v / (ACOLS / VEC), c = v % (ACOLS / VEC) * VEC;
      int m = TA ? c : r, k = TA ? r : c;
      int mleft = MODE == 1 ? width - dense0 : limit;
      int n = TA ? (k < kleft ? mleft - m : 0) : (m < mleft ? kleft - k : 0);
      size_t row, col;
      if (MODE == 0) {
        row = size_t(TA ? k0 + k : inside + m);
        col = size_t(TA ? inside + m : k0 + k);
      } else {
        int free = MODE == 1 ? dense0 + m : at_line + m;
        row = size_t(TA ? kat + k : free);
        col = size_t(TA ? free : kat + k);
      }
      size_t from = (MODE == 0 ? values : size_t(0)) + row * size_t(lda) + col;
      stage_fetch(as + put * ASIZE + r * LDA + c, ap + (n > 0 ? from : size_t(0)), n, awide);
    }
    for (int v = tid; v < BROWS * BCOLS / VEC; v += NT) {
      int r = v / (BCOLS / VEC), c = v % (BCOLS / VEC) * VEC;
      int j = TB ? r : c, k = TB ? c : r;
      int nleft = MODE == 0 ? width - dense0 - j : limit - j;
      int free = MODE == 0 ? dense0 + j : inside + j;
      if (MODE == 2) {
        int q = gx * (BN / SUB) + j / SUB;
        bool there = block[q] >= 0 && other[q] >= 0 && other[q] <= oextent / osize;
        int off = (there ? block[q] % pieces : 0) * SUB + j % SUB;
        free = (there ? other[q] : 0) * osize + off;
        nleft = there ? min(min(osize - off, oextent - free), SUB - j % SUB) : 0;
      }
      int n = TB ? (nleft > 0 ? kleft - k : 0) : (k < kleft ? nleft : 0);
      size_t row, col;
      if (MODE == 1) {
        row = size_t(TB ? free : k0 + k);
        col = size_t(TB ? k0 + k : free);
      } else {
        row = size_t(TB ? free : kat + k);
        col = size_t(TB ? kat + k : free);
      }
      size_t from = (MODE == 1 ? values : size_t(0)) + row * size_t(ldb) + col;
      stage_fetch(bs + put * BSIZE + r * LDB + c, bp + (n > 0 ? from : size_t(0)), n, bwide);
    }
    pc += 1;
    if (pc == chunks) {
      pc = 0;
      pe += 1;
    }
  }
  stage_close();
  if (it >= 0) {
    acc.template mma<BK, LDA, TA != 0, LDB, TB != 0>(as + get * ASIZE + (TA ? sm : sm * LDA), bs + get * BSIZE + (TB ? sn * LDB : sn));
    get = get + 1 == STAGES ? 0 : get + 1;
  }
  put = put + 1 == STAGES ? 0 : put + 1;
}
bool even = ((MODE == 0 ? width : MODE == 1 ? extent : osize) & 1) == 0;
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  int m = sm + acc.row(i);
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) {
    int n = sn + acc.col(j);
    size_t to = 0;
    int left = 0; // elements of the pair that exist
    if (MODE == 0 && m < limit) {
      to = (item * size_t(extent) + size_t(at_line + m)) * size_t(width) + size_t(dense0 + n);
      left = width - dense0 - n;
    }
    if (MODE == 1 && dense0 + m < width) {
      to = (item * size_t(width) + size_t(dense0 + m)) * size_t(extent) + size_t(at_line + n);
      left = limit - n;
    }
    if (MODE == 2 && inside + m < size) {
      int q = block[gx * (BN / SUB) + n / SUB];
      int off = (q < 0 ? 0 : q % pieces) * SUB + n % SUB;
      if (q >= 0 && q / pieces < nnz) {
        to = (size_t(z) * size_t(nnz) + size_t(q / pieces)) * block_size + size_t(inside + m) * size_t(osize) + size_t(off);
        left = osize - off;
      }
    }
    if (left >= 2) stage_put2(y + to, acc.get(i, j, 0), acc.get(i, j, 1), even && to % 2 == 0);
    else if (left == 1) y[to] = T(acc.get(i, j, 0));
  }
}
