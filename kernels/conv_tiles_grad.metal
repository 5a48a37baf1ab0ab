// Weight gradient over ordered rows (tap_tiles): partial sums over runs of places, fp32; sum_parts adds them in order.
// Only pieces of BK places in which a row has the tap are computed. Taps of one run start together: what one of them reads is
// in the cache for the others.
// in: ct[M, OUT] T, x[N, RED] T, nbr[K * P], rows[P], masks[P / 32, words of 32 taps] (tap_tiles)
//     dims = {N, M, P, K, RED, OUT, places of a run (a multiple of BK), tiles along RED, plain, G, S (of tap_tiles), runs, packed, share}
//     share: 2: runs 2 i and 2 i + 1 add to one sum, which is 0 before: two numbers give the same in either order; 1: a sum for each run
//     packed: nbr is as in packed.h, G 32, K at most 32, BK divides 256; RED and OUT are multiples of 16 bytes; plain: as if x were not aligned to 16 bytes
// out: parts[ceil(runs / share), OUT, K, RED] float32.   grid (32 WM WN * K, runs, tiles along OUT * tiles along RED)
// template: T; BM x BN: tile of OUT x RED; BK, WM, WN, STAGES, FOURS as in conv_tiles; EXACT (tile.h)
constexpr int NT = 32 * WM * WN;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int LDA = FOURS ? BM : tile_ld<T>(BM, true);
constexpr int LDB = FOURS ? BN : tile_ld<T>(BN, true);
constexpr int ASIZE = BK * LDA;
constexpr int BSIZE = BK * LDB;
constexpr int AC = BM / VEC;
constexpr int AR = NT / AC;
constexpr int AN = BK / AR;
constexpr int BC = BN / VEC;
constexpr int BR = NT / BC;
constexpr int BP = BK / BR;
static_assert(STAGES >= 2 && BK % 32 == 0 && (32 % AR == 0 || AR % 32 == 0) && BK % AR == 0 && BK % BR == 0 && (32 % BR == 0 || BR % 32 == 0) && AN > 0 && BP > 0, "threads copy equally often");
threadgroup uint4 smem[(STAGES * (ASIZE + BSIZE) + (FOURS ? 512 : 0)) * int(sizeof(T)) / 16];
threadgroup T* As = FOURS ? group_base((threadgroup T*)smem) : (threadgroup T*)smem;
threadgroup T* Bs = As + STAGES * ASIZE;
int rows_in = dims[0], rows_out = dims[1], places = dims[2], K = dims[3], RED = dims[4], OUT = dims[5];
int words = (K + 31) / 32;
int avec = OUT / VEC, bvec = RED / VEC;
int tid = int(thread_index_in_threadgroup);
int lane = int(thread_index_in_simdgroup);
int sg = int(simdgroup_index_in_threadgroup);
int run = dims[11] - 1 - int(threadgroup_position_in_grid.y); // the last have most taps (tap_keys) and start first
int tap = (int(threadgroup_position_in_grid.x) + K / 2) % K; // the middle tap, often the fullest, starts first
int m0 = int(threadgroup_position_in_grid.z) / dims[7] * BM;
int n0 = int(threadgroup_position_in_grid.z) % dims[7] * BN;
int sm = conv_first<FOURS, BM / WM>(sg / WN), sn = (sg % WN) * (BN / WN);
int ar = tid / AC, ac = m0 + tid % AC * VEC;
int br = tid / BC, bc = n0 + tid % BC * VEC;
bool fast = dims[8] == 0 && tile_aligned(ct) && tile_aligned(x); // else plain sums at the end, slow and right
int first = run * dims[6], last = min(places, first + dims[6]);
const device int* pairs = nbr + (dims[12] != 0 ? 0 : size_t(tap) * size_t(dims[10]));
int stride = dims[9];
conv_sums<T, BM / WM, BN / WN, EXACT, FOURS> acc;
acc.clear(thread_index_in_simdgroup);
tile_copy<T, AN> ca;
tile_copy<T, BP> cb;
constexpr bool SAME = AC == BC; // a thread copies the same places of ct and x
int oa[AN], ja[AN], ob[BP], jb[BP]; // pairs copied next, rows of ct and x, as read: nothing waits for them yet
int base = first - 32 * BK; // pieces in sight: 32 from here on, one bit each
uint left = 0u;
int start = 0; // where this lane's piece in sight has its pairs, in groups of 32
int pending = -STAGES;  // steps until the first product
bool ready = false;     // they hold a piece
int open = 0;           // pieces copied and not yet multiplied
int put = 0, get = 0;
bool going = fast;
for (; going; pending++) {
  // The piece after the one that is copied now. All threads decide alike.
  while (left == 0u && base + 32 * BK < last) {
    base += 32 * BK;
    int at = base + lane * BK;
    uint any = 0u;
    TILE_UNROLL
    for (int g = 0; g < BK / 32; g++)
      if (at + 32 * g < last) any |= masks[size_t(at / 32 + g) * size_t(words) + size_t(tap / 32)];
    left = uint(ulong(simd_ballot((any >> uint(tap % 32) & 1u) != 0u)));
    start = at / 32 * (stride / 32);
    if (dims[12] != 0 && at < last) start = int(packed_at(nbr, at / 256, packed_taps(nbr, at / 256), tap) / 32) + at % 256 / 32;
  }
  bool copying = ready;
  if (pending >= 0) {
    tile_wait<STAGES - 2>();
    acc.landed();
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (FOURS && pending >= 0 && open > 0) { // these run while copies are started
    acc.template multiply<BK, LDA, LDB, true>(As + get * ASIZE, Bs + get * BSIZE, sg, sm, sn);
    get = get + 1 == STAGES ? 0 : get + 1;
    open -= 1;
  }
  if (copying) {
    TILE_UNROLL
    for (int i = 0; i < AN; i++) {
      bool ok = oa[i] >= 0 && oa[i] < rows_out && ja[i] >= 0 && ja[i] < rows_in && ac < OUT;
      ca.fetch(i, As + put * ASIZE + conv_turned_at<FOURS, LDA, BK>(ar + i * AR, ac - m0), ct + size_t(ok ? oa[i] * avec + ac / VEC : 0) * size_t(VEC), ok);
    }
    TILE_UNROLL
    for (int i = 0; i < BP; i++) {
      int o = SAME ? oa[SAME ? i : 0] : ob[i], j = SAME ? ja[SAME ? i : 0] : jb[i];
      bool ok = o >= 0 && o < rows_out && j >= 0 && j < rows_in && bc < RED;
      cb.fetch(i, Bs + put * BSIZE + conv_turned_at<FOURS, LDB, BK>(br + i * BR, bc - n0), x + size_t(ok ? j * bvec + bc / VEC : 0) * size_t(VEC), ok);
    }
  }
  if (pending > -STAGES) tile_commit();
  ready = left != 0u;
  if (ready) {
    int piece = int(popcount((left & (0u - left)) - 1u)), at = base + piece * BK;
    left &= left - 1u;
    const device int* from = pairs + 32 * size_t(simd_shuffle(start, ushort(piece)));
    TILE_UNROLL
    for (int i = 0; i < AN; i++) {
      int place = at + ar + i * AR;
      ja[i] = place < last ? from[(ar / 32 + i * AR / 32) * stride + ar % 32 + i * AR % 32] : -1;
      oa[i] = place < last ? rows[place] : -1;
    }
    TILE_UNROLL
    for (int i = 0; i < BP; i++) {
      int place = at + br + i * BR;
      if (!SAME) {
        jb[i] = place < last ? from[(br / 32 + i * BR / 32) * stride + br % 32 + i * BR % 32] : -1;
        ob[i] = place < last ? rows[place] : -1;
      }
    }
  }
  if (!FOURS && pending >= 0 && open > 0) {
    acc.template multiply<BK, LDA, LDB, true>(As + get * ASIZE, Bs + get * BSIZE, sg, sm, sn);
    get = get + 1 == STAGES ? 0 : get + 1;
    open -= 1;
  }
  if (copying) {
    ca.land();
    cb.land();
    put = put + 1 == STAGES ? 0 : put + 1;
    open += 1;
  }
  going = ready || open > 0;
}
acc.done();
bool shared = dims[13] > 1;
device float* sums = parts + size_t(run / dims[13]) * size_t(OUT) * size_t(K) * size_t(RED);
TILE_UNROLL
for (int i = 0; i < acc.ROWS; i++) {
  int m = m0 + sm + acc.row(i);
  TILE_UNROLL
  for (int j = 0; j < acc.COLS; j++) {
    int n = n0 + sn + acc.col(j);
    device float* to = sums + (size_t(m) * size_t(K) + size_t(tap)) * size_t(RED) + size_t(n);
    if (!fast || m >= OUT || n >= RED) continue; // RED is even
    if (shared) tile_add2(to, acc.get(i, j, 0), acc.get(i, j, 1));
    else tile_put2(to, acc.get(i, j, 0), acc.get(i, j, 1), true);
  }
}
if (!fast) {
  TILE_ROLLED
  for (int e = tid; e < BM * BN; e += NT) {
    int m = m0 + e / BN, n = n0 + e % BN;
    if (m < OUT && n < RED) {
      float sum = 0.0f;
      TILE_ROLLED
      for (int place = first; place < last; place++) {
        bool own = (masks[size_t(place / 32) * size_t(words) + size_t(tap / 32)] >> uint(tap % 32) & 1u) != 0u;
        if (!own) continue;
        size_t at = dims[12] != 0 ? packed_at(nbr, place / 256, packed_taps(nbr, place / 256), tap) + size_t(place % 256)
                                  : size_t(place / 32) * size_t(stride) + size_t(place % 32);
        int j = pairs[at], o = rows[place];
        if (j >= 0 && j < rows_in && o >= 0 && o < rows_out)
          sum += float(ct[size_t(o) * size_t(OUT) + size_t(m)]) * float(x[size_t(j) * size_t(RED) + size_t(n)]);
      }
      device float* to = sums + (size_t(m) * size_t(K) + size_t(tap)) * size_t(RED) + size_t(n);
      if (shared) atomic_fetch_add_explicit((device atomic_float*)to, sum, memory_order_relaxed);
      else *to = sum;
    }
  }
}
