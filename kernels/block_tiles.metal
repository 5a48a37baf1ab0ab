// Products with block-sparse matrices whose sizes are multiples of SIDE and BK: block_gemm.metal's three modes with larger
// tiles. A piece is SIDE rows or columns; each simdgroup computes SIDE x SIDE of the result. A step copies BK reduced
// elements of every piece of the tile; STAGES of them are in flight.
// MODE 0 (dsd): NA pieces of block rows, whose lists are merged, x NB pieces of the dense operand.   MODE 1 (dds): NA pieces of
// the dense operand x NB pieces of block columns.   MODE 2 (sdd): NA * NB places of stored blocks, anywhere, of up to
// NA * NB + 1 pieces of op(A) and op(B).
// in: a, b T: dense (Z, H, rows, columns) or values (Z, nnz, br, bc), stored transposed where TA, TB
//     MODE 0, 1: G = NA or NB lines of a tile. line[groups * G] piece of a head of each, -1: none; ptr[groups + 1] entries;
//       block[entries * G] block of each line, -1: none; other[entries] place along the reduced axis
//     MODE 2: P = NA * NB. line[groups * (P + 1)] pieces, those of op(A) first, -1: none; ptr[groups] how many those are;
//       block[groups * P] (block * parts + part of rows) * parts of columns + part of columns, -1: none;
//       other[groups * P] where its pieces are: of op(A) + 256 * of op(B)
//     dims = {groups, nnz, line size, other size, line extent, other extent, dense width, heads}: as of block_gemm.metal; entries
// out: y T: (Z, H, M, N) or (Z, nnz, br, bc).
// grid (groups, MODE 0: ceil(width / (NB * SIDE)), 1: ceil(width / (NA * SIDE)), 2: 1, Z); threads 32 * NA * NB
// template: T; MODE, TA, TB; NA, NB, SIDE, SLOTS (pieces of a tile), BK, STAGES; KEEP: what is read stays in L1 (CUDA); EXACT (tile.h)
constexpr int P = NA * NB;
constexpr int NT = 32 * P;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int NS = SLOTS;
constexpr int G = MODE == 0 ? NA : NB;
constexpr int LDA = tile_ld<T>(TA ? SIDE : BK, TA != 0);
constexpr int LDB = tile_ld<T>(TB ? BK : SIDE, TB == 0);
constexpr int LDY = SIDE + VEC;
constexpr int ASIZE = (TA ? BK : SIDE) * LDA;
constexpr int BSIZE = (TB ? SIDE : BK) * LDB;
constexpr int SLOT = ASIZE > BSIZE ? ASIZE : BSIZE;
constexpr int AC = (TA ? SIDE : BK) / VEC; // copies of a row, rows of a pass
constexpr int BC = (TB ? BK : SIDE) / VEC;
constexpr int AR = NT / AC;
constexpr int BR = NT / BC;
constexpr int COPIES = SIDE * BK / VEC / NT; // of a thread and piece
static_assert(COPIES > 0 && SIDE * BK / VEC % NT == 0 && STAGES * NS * SLOT >= P * SIDE * LDY, "threads copy equally often");
threadgroup uint4 smem[STAGES * NS * SLOT * int(sizeof(T)) / 16];
threadgroup T* tiles = (threadgroup T*)smem;
int nnz = dims[1], size = dims[2], osize = dims[3], extent = dims[4], oextent = dims[5], width = dims[6], heads = dims[7];
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup);
int group = int(threadgroup_position_in_grid.x);
int z = int(threadgroup_position_in_grid.z);
int dense0 = int(threadgroup_position_in_grid.y) * (MODE == 0 ? NB : NA) * SIDE;
int parts = size / SIDE, oparts = MODE == 2 ? osize / SIDE : 1;
int units = extent / SIDE, ounits = oextent / SIDE; // pieces of a head along the lines, and along the other axis
// The piece of this simdgroup's line, and its head. Every index is kept inside the arrays.
int unit = -1, head = 0, na = NA;
int inside[G]; // a line's first element in its block
if (MODE == 2) na = min(max(ptr[group], 0), NS);
TILE_UNROLL
for (int g = 0; g < (MODE == 2 ? 1 : G); g++) {
  int found = line[group * (MODE == 2 ? NS : G) + g];
  if (found < 0 || found >= units * heads) found = -1;
  inside[g] = found < 0 ? 0 : found % units % parts * SIDE;
  if (g == 0 && found >= 0) head = found / units;
  if (MODE != 2 && g == (MODE == 0 ? sg / NB : sg % NB)) unit = found < 0 ? -1 : found - head * units;
}
if (unit >= units) unit = -1;
int inner = MODE == 2 ? width : oextent; // the whole reduced axis
int lda = MODE == 0 ? (TA ? size : osize) : MODE == 1 ? (TA ? width : inner) : (TA ? extent : inner);
int ldb = MODE == 1 ? (TB ? osize : size) : MODE == 0 ? (TB ? inner : width) : (TB ? inner : oextent);
size_t block_size = size_t(size) * size_t(osize);
size_t item = size_t(z) * size_t(heads) + size_t(head);
const device T* ap = a + (MODE == 0 ? size_t(z) * size_t(nnz) * block_size : item * size_t(inner) * size_t(MODE == 1 ? width : extent));
const device T* bp = b + (MODE == 1 ? size_t(z) * size_t(nnz) * block_size : item * size_t(inner) * size_t(MODE == 0 ? width : oextent));
bool wide = stage_aligned(ap) && stage_aligned(bp); // else plain sums at the end, slow and right
const device T* a0 = ap;
const device T* b0 = bp;
// This thread's first element of a piece; a step along the free and the reduced axis.
int ar = tid / AC, ac = tid % AC * VEC, br = tid / BC, bc = tid % BC * VEC;
ap += size_t(ar) * size_t(lda) + size_t(ac);
bp += size_t(br) * size_t(ldb) + size_t(bc);
size_t afree = TA ? 1 : size_t(lda), ared = TA ? size_t(lda) : 1;
size_t bfree = TB ? size_t(ldb) : 1, bred = TB ? 1 : size_t(ldb);
size_t apass = size_t(AR) * size_t(lda), bpass = size_t(BR) * size_t(ldb);
threadgroup T* aput = tiles + ar * LDA + ac;
threadgroup T* bput = tiles + br * LDB + bc;
int first = 0, entries = 1, depth = width; // reduced elements of an entry
if (MODE != 2) {
  first = max(0, ptr[group]);
  entries = max(0, min(dims[8], ptr[group + 1]) - first);
  depth = osize;
}
int places = oextent / osize;
int chunks = (depth + BK - 1) / BK;
int steps = wide ? entries * chunks : 0;
// MODE 0, 1: the blocks that are copied, and those of the next entry. MODE 2: the pieces, bits of those that exist.
const device T* from[NS];
int next[G], place = 0, next_place = -1;
uint live = 0u, ring = 0u; // ring: which buffers hold a block of this simdgroup's line
int sa = sg / NB, sb = NA + sg % NB, cell = -1;
if (MODE == 2) {
  TILE_UNROLL
  for (int s = 0; s < NS; s++) {
    int at = line[group * NS + s];
    if (s < na) at = at < 0 ? -1 : at - head * units;
    bool there = at >= 0 && at < (s < na ? units : ounits);
    if (there) live |= 1u << uint(s);
    size_t piece = size_t(there ? at : 0) * size_t(SIDE);
    from[s] = s < na ? ap + piece * afree : bp + piece * bfree;
  }
  cell = block[group * P + sg];
  sa = other[group * P + sg] % 256;
  sb = other[group * P + sg] / 256;
  if (cell < 0 || cell / (parts * oparts) >= nnz || sa < 0 || sa >= na || sb < na || sb >= NS) cell = -1;
  if (cell >= 0 && ((live >> uint(sa) & live >> uint(sb)) & 1u) == 0u) cell = -1;
  if (cell < 0) sa = sb = 0;
} else {
  TILE_UNROLL
  for (int g = 0; g < G; g++) next[g] = entries > 0 ? block[size_t(first) * size_t(G) + size_t(g)] : -1;
  next_place = entries > 0 ? other[first] : -1;
}
tile_mma<T, SIDE, SIDE, EXACT> acc;
acc.clear(thread_index_in_simdgroup);
int pe = 0, pc = 0; // entry and chunk that are fetched next
int put = 0, get = 0;
for (int it = 1 - STAGES; it < steps; it++) {
  if (it >= 0) {
    stage_wait<STAGES - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  // Of two simdgroups that share a core's multipliers one copies while the other multiplies.
  for (int turn = 0; turn < 2; turn++) {
    if (turn == (sg / 4) % 2) {
      if (it + STAGES - 1 < steps) {
        int k0 = pc * BK, base = put * NS * SLOT;
        if (MODE == 2) {
          TILE_UNROLL
          for (int s = 0; s < NS; s++) {
            if ((live >> uint(s) & 1u) != 0u) {
              TILE_UNROLL
              for (int c = 0; c < COPIES; c++) {
                if (s < na) stage_zero16<KEEP != 0>(aput + base + s * SLOT + c * AR * LDA, from[s] + size_t(c) * apass, k0 + (TA ? ar + c * AR : ac) < depth);
                else stage_zero16<KEEP != 0>(bput + base + s * SLOT + c * BR * LDB, from[s] + size_t(c) * bpass, k0 + (TB ? bc : br + c * BR) < depth);
              }
              from[s] += size_t(BK) * (s < na ? ared : bred);
            }
          }
        } else {
          if (pc == 0) {
            live = 0u;
            place = next_place;
            bool known = place >= 0 && place < places;
            if (!known) place = 0;
            TILE_UNROLL
            for (int g = 0; g < G; g++) {
              bool there = known && next[g] >= 0 && next[g] < nnz;
              size_t start = size_t(there ? next[g] : 0) * block_size + size_t(inside[g]) * (MODE == 0 ? afree : bfree);
              from[g] = (MODE == 0 ? ap : bp) + start;
              if (there) live |= 1u << uint(g);
            }
            size_t start = size_t(place) * size_t(osize) * (MODE == 0 ? bred : ared) + size_t(dense0) * (MODE == 0 ? bfree : afree);
            from[G] = (MODE == 0 ? bp : ap) + start;
            size_t e = size_t(first + min(pe + 1, entries - 1));
            TILE_UNROLL
            for (int g = 0; g < G; g++) next[g] = block[e * size_t(G) + size_t(g)];
            next_place = other[e];
          }
          uint mine = live >> uint(MODE == 0 ? sg / NB : sg % NB) & 1u;
          ring = (ring & ~(1u << uint(put))) | mine << uint(put);
          TILE_UNROLL
          for (int s = 0; s < NA; s++) {
            if (MODE == 1 || (live >> uint(s) & 1u) != 0u) {
              const device T* source = MODE == 0 ? from[s < G ? s : 0] : from[G] + size_t(s * SIDE) * afree;
              TILE_UNROLL
              for (int c = 0; c < COPIES; c++)
                stage_zero16<KEEP != 0>(aput + base + s * SLOT + c * AR * LDA, source + size_t(c) * apass,
                           MODE == 0 || dense0 + s * SIDE + (TA ? ac : ar + c * AR) < width);
            }
          }
          TILE_UNROLL
          for (int s = 0; s < NB; s++) {
            if (MODE == 0 || (live >> uint(s) & 1u) != 0u) {
              const device T* source = MODE == 1 ? from[s < G ? s : 0] : from[G] + size_t(s * SIDE) * bfree;
              TILE_UNROLL
              for (int c = 0; c < COPIES; c++)
                stage_zero16<KEEP != 0>(bput + base + (NA + s) * SLOT + c * BR * LDB, source + size_t(c) * bpass,
                           MODE == 1 || dense0 + s * SIDE + (TB ? br + c * BR : bc) < width);
            }
          }
          TILE_UNROLL
          for (int g = 0; g < G; g++) from[g] += size_t(BK) * (MODE == 0 ? ared : bred);
          from[G] += size_t(BK) * (MODE == 0 ? bred : ared);
        }
        pc += 1;
        if (pc == chunks) {
          pc = 0;
          pe += 1;
        }
      }
      stage_close();
    } else if (it >= 0 && (MODE == 2 ? cell >= 0 : (ring >> uint(get) & 1u) != 0u)) {
      acc.template mma<BK, LDA, TA != 0, LDB, TB != 0>(tiles + (get * NS + sa) * SLOT, tiles + (get * NS + sb) * SLOT);
    }
  }
  if (it >= 0) get = get + 1 == STAGES ? 0 : get + 1;
  put = put + 1 == STAGES ? 0 : put + 1;
}
// Results go through threadgroup memory: a simdgroup writes whole rows.
stage_wait<0>();
threadgroup_barrier(mem_flags::mem_threadgroup);
threadgroup T* ys = tiles + sg * SIDE * LDY;
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) stage_pair(ys + acc.row(i) * LDY + acc.col(j), acc.get(i, j, 0), acc.get(i, j, 1));
}
if (!wide) {
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = lane; e < SIDE * SIDE; e += 32) {
    int m = e / SIDE, n = e % SIDE, g = MODE == 0 ? sg / NB : sg % NB;
    float sum = 0.0f;
    for (int t = 0; t < (MODE == 2 ? (cell < 0 ? 0 : 1) : entries); t++) {
      size_t am = size_t(dense0 + sg / NB * SIDE + m) * afree, bn = size_t(dense0 + sg % NB * SIDE + n) * bfree;
      bool there = MODE == 0 ? dense0 + sg % NB * SIDE + n < width : MODE == 2 || dense0 + sg / NB * SIDE + m < width;
      if (MODE == 2) {
        am = size_t(line[group * NS + sa] - head * units) * size_t(SIDE) * afree + size_t(m) * afree;
        bn = size_t(line[group * NS + sb]) * size_t(SIDE) * bfree + size_t(n) * bfree;
      } else {
        int blk = block[size_t(first + t) * size_t(G) + size_t(g)], at = other[first + t];
        there = there && blk >= 0 && blk < nnz && at >= 0 && at < places;
        size_t in_block = size_t(blk) * block_size, reduced = size_t(at) * size_t(osize);
        if (MODE == 0) {
          am = in_block + size_t(inside[g] + m) * afree;
          bn += reduced * bred;
        } else {
          bn = in_block + size_t(inside[g] + n) * bfree;
          am += reduced * ared;
        }
      }
      if (there)
        for (int k = 0; k < depth; k++) sum += float(a0[am + size_t(k) * ared]) * float(b0[bn + size_t(k) * bred]);
    }
    ys[m * LDY + n] = T(sum);
  }
}
simdgroup_barrier(mem_flags::mem_threadgroup);
size_t to = 0, ldy = 0;
int rows = 0, columns = 0; // of this simdgroup's result that exist
if (MODE == 0 && unit >= 0) {
  to = (item * size_t(extent) + size_t(unit) * size_t(SIDE)) * size_t(width) + size_t(dense0 + sg % NB * SIDE);
  ldy = size_t(width);
  rows = SIDE;
  columns = width - dense0 - sg % NB * SIDE;
}
if (MODE == 1 && unit >= 0) {
  to = (item * size_t(width) + size_t(dense0 + sa * SIDE)) * size_t(extent) + size_t(unit) * size_t(SIDE);
  ldy = size_t(extent);
  rows = width - dense0 - sa * SIDE;
  columns = SIDE;
}
if (MODE == 2 && cell >= 0) {
  int part = cell / oparts % parts;
  to = (size_t(z) * size_t(nnz) + size_t(cell / (parts * oparts))) * block_size + size_t(part * SIDE) * size_t(osize) + size_t(cell % oparts * SIDE);
  ldy = size_t(osize);
  rows = columns = SIDE;
}
for (int v = lane; v < SIDE * SIDE / VEC; v += 32) {
  int r = v / (SIDE / VEC), c = v % (SIDE / VEC) * VEC;
  if (r < rows && c < columns) *(device uint4*)(y + to + size_t(r) * ldy + size_t(c)) = *(const threadgroup uint4*)(ys + r * LDY + c);
}
