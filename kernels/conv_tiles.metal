// Convolution over ordered rows (tap_tiles): y[o] = bias + sum over taps t of W[t] x[nbr[t, o]], fp32 sums.
// A tile is BM places; only taps that one of its rows has are computed.
// in: x[N, RED] T, weight[OUT, K, RED] T, bias[OUT] float32, nbr[K * P], rows[P], masks[P / 32, words of 32 taps] (tap_tiles), turns[P / 256],
//     line[2, OUT] float32 (norm_line), add[M, OUT] T, mix[OUT, WIDE] T,
//     mean[OUT], var[OUT], gain[OUT], offset[OUT] T
//     dims = {N, M, P, K, RED, OUT, has bias, active, plain, G, S (of tap_tiles), relu, has add, WIDE, own, eps (its bits), has turns, packed};
//     packed: nbr is as in packed.h, G 32, S 256, K at most 32; RED and WIDE are multiples of 16 bytes; own: scale and shift are made from mean, var, gain and offset
//     plain: as if x were not aligned to 16 bytes; FINISH: what a norm of fixed statistics makes of it: y * scale + shift,
//     plus `add`, and 0 where that is less, of y as it would be without (norm_fixed). 2: what is added is the product of
//     add[M, WIDE] and mix, rounded to T; it lies in y until then
// out: y[M, OUT] T; rows at and past `active` are 0.   grid (32 WM WN * P / BM, ceil(OUT / BN), 1)
// template: T; BM, BN, BK tile sizes; WM x WN simdgroups; STAGES >= 2 buffers; KEEP: 1 x, 2 weight, 3 both stay in L1
//     (CUDA); EXACT (tile.h); FINISH; FOURS: four simdgroups multiply together (group.h), WM a multiple of 4, WN 1, BK 64 on CUDA
constexpr int NT = 32 * WM * WN;
constexpr int VEC = 16 / int(sizeof(T));
constexpr int LDA = FOURS ? BK : tile_ld<T>(BK, false);
constexpr int ASIZE = BM * LDA;
constexpr int BSIZE = BN * LDA;
constexpr int AC = BK / VEC; // copies of a row, rows of a pass, passes
constexpr int AR = NT / AC;
constexpr int AN = BM / AR;
constexpr int BP = BN / AR;
constexpr int LDO = BN + VEC; // results on their way out
constexpr int OC = BN / VEC;
constexpr int OR = NT / OC;
constexpr int ON = BM / OR;
constexpr int RN = (BM + NT - 1) / NT;     // row numbers that a thread reads for them
constexpr int FEW = ON % 4 == 0 ? 4 : ON; // rows of a thread that are finished together: what is added to them is read first
constexpr bool FITS = BM * (LDO + 4 / int(sizeof(T))) <= STAGES * (ASIZE + BSIZE) && NT % OC == 0 && BM % OR == 0;
static_assert(STAGES >= 2 && BM % AR == 0 && (32 % AR == 0 || AR % 32 == 0) && BN % AR == 0 && AN > 0 && BP > 0, "threads copy equally often");
threadgroup uint4 smem[(STAGES * (ASIZE + BSIZE) + (FOURS ? 512 : 0)) * int(sizeof(T)) / 16];
threadgroup T* As = FOURS ? group_base((threadgroup T*)smem) : (threadgroup T*)smem;
threadgroup T* Bs = As + STAGES * ASIZE;
int rows_in = dims[0], rows_out = dims[1], K = dims[3], RED = dims[4], OUT = dims[5];
int group = dims[9], next_tap = dims[10]; // read once: the copies below hide from the compiler that they stay
int words = (K + 31) / 32;
int tid = int(thread_index_in_threadgroup);
int sg = int(simdgroup_index_in_threadgroup);
int place0 = (dims[2] / BM - 1 - int(threadgroup_position_in_grid.x)) * BM; // the last have many taps (tap_keys) and start first
if (dims[16] != 0) { // BM is at most 256
  int first = int(threadgroup_position_in_grid.x) * BM;
  place0 = int(min(uint(turns[first / 256]), uint(dims[2] / 256 - 1))) * 256 + first % 256;
}
int col0 = int(threadgroup_position_in_grid.y) * BN;
int sm = conv_first<FOURS, BM / WM>(sg / WN), sn = (sg % WN) * (BN / WN);
int ar = tid / AC, ac = tid % AC * VEC;
const device uint* mask = masks + size_t(place0 / 32) * size_t(words);
int blocks = 0; // taps of this tile
uint left = 0u; // of a word of the masks
for (int w = words - 1; w >= 0; w--) {
  left = 0u;
  TILE_UNROLL
  for (int g = 0; g < BM / 32; g++) left |= mask[g * words + w];
  blocks += int(popcount(left));
}
// Row numbers of this thread's first place; AR divides 32 or is a multiple of it.
uint kept = dims[17] != 0 ? packed_taps(nbr, place0 / 256) : 4294967295u; // taps that the map has here
size_t start = dims[17] != 0 ? packed_at(nbr, place0 / 256, 0u, 0) + size_t(place0 % 256) : size_t(place0 / 32) * size_t(group);
const device int* taps = nbr + start + size_t(ar / 32) * size_t(group) + size_t(ar % 32);
bool fast = dims[8] == 0 && tile_aligned(x) && tile_aligned(weight); // else plain sums at the end, slow and right
if (FINISH == 2) fast = fast && tile_aligned(add) && tile_aligned(mix);
conv_norm<T> norm = {line, mean, var, gain, offset, OUT, dims[14] != 0, as_type<float>(dims[15])};
conv_sums<T, BM / WM, BN / WN, EXACT, FOURS> acc;
tile_copy<T, AN, (KEEP & 1) != 0> ca;
tile_copy<T, BP, (KEEP & 2) != 0> cb;
int idx[AN], nxt[AN];       // offsets of the rows being copied; rows of the next tap, as read: nothing waits for them yet
constexpr int OWN = BM / WM / 32; // groups of 32 places that this simdgroup multiplies; 0: it shares one
constexpr bool SKIP = EXACT != 0 && OWN > 0; // taps that none of them has; pays where arithmetic is what takes the time
for (int pass = FINISH == 2 ? 0 : 1; pass < 2; pass++) { // the first: what is added
  const bool mixing = FINISH == 2 && pass == 0;
  const device T* from_x = mixing ? add : x;
  const device T* from_w = mixing ? mix : weight;
  int red = mixing ? dims[13] : RED, sources = mixing ? rows_out : rows_in;
  int rvec = red / VEC; // offsets count copies, so that 32 bits reach far enough
  int chunks = (red + BK - 1) / BK;
  int number = mixing ? 1 : blocks;
  int steps = fast ? number * chunks : 0;
  int word = 0;
  int tap = 0, ntap = -1;     // tap being copied; the next one, -1 before the first
  int pc = 0, fetched = -1;   // producer: channel chunk; taps fetched so far
  int put = 0, get = 0;       // buffers written and read in this step
  bool has = true;            // one of them has the tap being copied
  uint present = 0u;          // whether they have the taps copied in the last steps, bit 0 the latest
  acc.clear(thread_index_in_simdgroup);
  for (int it = -STAGES; it < steps; it++) {
    int ahead = it + STAGES - 1; // this step is copied now, while step `it` is multiplied
    bool more = ahead >= 0 && ahead < steps;
    if (it >= 0) {
      tile_wait<STAGES - 2>();
      acc.landed();
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (FOURS && it >= 0) { // these run while copies are started
      acc.template multiply<BK, LDA, LDA, false>(As + get * ASIZE, Bs + get * BSIZE, sg, sm, sn);
      get = get + 1 == STAGES ? 0 : get + 1;
    }
    if (more && pc == 0) {
      TILE_UNROLL
      for (int i = 0; i < AN; i++) idx[i] = nxt[i] >= 0 && nxt[i] < sources ? nxt[i] * rvec : -1;
      tap = ntap;
      if (SKIP && !mixing) {
        uint own = 0u;
        TILE_UNROLL
        for (int g = 0; g < OWN; g++) own |= mask[(sm / 32 + g) * words + ntap / 32];
        has = (own >> uint(ntap % 32) & 1u) != 0u;
      }
    }
    if (mixing && fetched < 0) {
      fetched = ntap = 0;
      TILE_UNROLL
      for (int i = 0; i < AN; i++) nxt[i] = rows[place0 + ar + i * AR];
    } else if ((more ? pc == 0 : ahead < 0) && fetched + 1 < number) { // row numbers of the next tap are read a tap early
      fetched += 1;
      while (left == 0u && word + 1 < words) {
        word += 1;
        TILE_UNROLL
        for (int g = 0; g < BM / 32; g++) left |= mask[g * words + word];
      }
      uint below = (left & (0u - left)) - 1u;
      ntap = word * 32 + int(popcount(below));
      left &= left - 1u;
      const device int* from = taps + size_t(word * 32 + int(popcount(below & kept))) * size_t(next_tap);
      TILE_UNROLL
      for (int i = 0; i < AN; i++) nxt[i] = from[i * AR / 32 * group + i * AR % 32];
    }
    if (more) {
      int c = pc * BK;
      threadgroup T* at = As + put * ASIZE;
      threadgroup T* bt = Bs + put * BSIZE;
      TILE_UNROLL
      for (int i = 0; i < AN; i++) {
        bool ok = idx[i] >= 0 && c + ac < red;
        ca.fetch(i, at + conv_at<FOURS, LDA, BK>(ar + i * AR, ac), from_x + size_t(ok ? idx[i] + (c + ac) / VEC : 0) * size_t(VEC), ok);
      }
      TILE_UNROLL
      for (int i = 0; i < BP; i++) {
        int r = ar + i * AR;
        bool ok = col0 + r < OUT && c + ac < red;
        cb.fetch(i, bt + conv_at<FOURS, LDA, BK>(r, ac), from_w + (ok ? ((col0 + r) * (mixing ? 1 : K) + tap) * red + c + ac : 0), ok);
      }
      pc = pc + 1 == chunks ? 0 : pc + 1;
    }
    if (ahead >= 0) {
      tile_commit();
      present = present << 1u | uint(has);
      if (!FOURS && it >= 0) {
        if (!SKIP || (present >> uint(STAGES - 1) & 1u) != 0u)
          acc.template multiply<BK, LDA, LDA, false>(As + get * ASIZE, Bs + get * BSIZE, sg, sm, sn);
        get = get + 1 == STAGES ? 0 : get + 1;
      }
      put = put + 1 == STAGES ? 0 : put + 1;
      if (more) {
        ca.land();
        cb.land();
      }
    }
  }
  acc.done();
  if (fast && FITS) { // results go through threadgroup memory, so that whole rows are written
    int to_row[RN];
    TILE_UNROLL
    for (int i = 0; i < RN; i++) to_row[i] = i * NT + tid < BM ? rows[place0 + i * NT + tid] : -1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    TILE_UNROLL
    for (int j = 0; j < acc.COLS; j++) {
      int c = col0 + sn + acc.col(j);
      bool biased = dims[6] != 0 && !mixing;
      float first = biased && c < OUT ? bias[c] : 0.0f, second = biased && c + 1 < OUT ? bias[c + 1] : 0.0f;
      TILE_UNROLL
      for (int i = 0; i < acc.ROWS; i++)
        tile_keep2(As + (sm + acc.row(i)) * LDO + sn + acc.col(j), acc.get(i, j, 0) + first, acc.get(i, j, 1) + second);
    }
    threadgroup int* outputs = (threadgroup int*)(As + BM * LDO);
    TILE_UNROLL
    for (int i = 0; i < RN; i++)
      if (i * NT + tid < BM) outputs[i * NT + tid] = to_row[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int c = col0 + tid % OC * VEC;
    threadgroup T* mine = As + tid / OC * LDO + tid % OC * VEC;
    const device T* more = FINISH == 2 ? (const device T*)y : add;
    if (OUT % VEC == 0 && (FINISH == 0 || tile_aligned(more))) {
      if (c < OUT) {
        conv_finish<T, FINISH ? VEC : 0> finish;
        finish.begin(norm, more, dims, OUT, c);
        TILE_ROLLED
        for (int first = 0; first < ON; first += FEW) {
          norm_piece<T> added[FEW];
          int to[FEW];
          TILE_UNROLL
          for (int i = 0; i < FEW; i++) {
            to[i] = outputs[tid / OC + (first + i) * OR];
            if (to[i] >= rows_out) to[i] = -1;
            if (to[i] >= 0 && to[i] < dims[7] && !mixing) finish.read(added[i], to[i]);
          }
          TILE_UNROLL
          for (int i = 0; i < FEW; i++) {
            threadgroup T* row = mine + (first + i) * OR * LDO;
            bool live = to[i] < dims[7];
            if (to[i] >= 0) {
              if (live && !mixing) finish.row(row, added[i]);
              tile_row16(y + size_t(to[i]) * size_t(OUT) + size_t(c), row, live);
            }
          }
        }
      }
    } else {
      TILE_ROLLED
      for (int e = 0; e < ON * VEC; e++) {
        int o = rows[place0 + tid / OC + e / VEC * OR], to = c + e % VEC;
        if (o >= 0 && o < rows_out && to < OUT) {
          float value = float(mine[e / VEC * OR * LDO + e % VEC]);
          if (FINISH && !mixing) value = conv_finish_value(value, norm, more, dims, OUT, to, o);
          y[size_t(o) * size_t(OUT) + size_t(to)] = T(o < dims[7] ? value : 0.0f);
        }
      }
    }
  } else if (fast) {
    int to_row[acc.ROWS];
    bool even = OUT % 2 == 0;
    TILE_UNROLL
    for (int i = 0; i < acc.ROWS; i++) to_row[i] = rows[place0 + sm + acc.row(i)]; // all reads before the first store
    TILE_UNROLL
    for (int i = 0; i < acc.ROWS; i++) {
      int o = to_row[i];
      if (o >= 0 && o < rows_out) {
        bool live = o < dims[7];
        device T* to = y + size_t(o) * size_t(OUT);
        TILE_UNROLL
        for (int j = 0; j < acc.COLS; j++) {
          int c = col0 + sn + acc.col(j);
          float first = acc.get(i, j, 0), second = acc.get(i, j, 1);
          if (dims[6] != 0 && !mixing) {
            if (c < OUT) first += bias[c];
            if (c + 1 < OUT) second += bias[c + 1];
          }
          if (FINISH && live && !mixing) {
            const device T* more = FINISH == 2 ? (const device T*)y : add;
            if (c < OUT) first = conv_finish_value(first, norm, more, dims, OUT, c, o);
            if (c + 1 < OUT) second = conv_finish_value(second, norm, more, dims, OUT, c + 1, o);
          }
          if (!live) first = second = 0.0f;
          if (c + 1 < OUT) tile_put2(to + c, first, second, even);
          else if (c < OUT) to[c] = T(first);
        }
      }
    }
  }
  if (mixing) threadgroup_barrier(mem_flags::mem_threadgroup); // the buffers are free again
}
if (!fast) {
  TILE_ROLLED
  for (int e = tid; e < BM * BN; e += NT) {
    int place = place0 + e / BN, o = rows[place], c = col0 + e % BN;
    if (o >= 0 && o < rows_out && c < OUT) {
      float sum = 0.0f;
      TILE_ROLLED
      for (int t = 0; t < K; t++) {
        if ((masks[size_t(place / 32) * size_t(words) + size_t(t / 32)] >> uint(t % 32) & 1u) == 0u) continue;
        size_t at = dims[17] != 0 ? packed_at(nbr, place / 256, kept, t) + size_t(place % 256)
                                  : size_t(place / 32) * size_t(group) + size_t(t) * size_t(next_tap) + size_t(place % 32);
        int j = nbr[at];
        if (j >= 0 && j < rows_in)
          TILE_ROLLED
          for (int r = 0; r < RED; r++)
            sum += float(x[size_t(j) * size_t(RED) + size_t(r)]) *
                   float(weight[(c * K + t) * RED + r]);
      }
      if (dims[6] != 0) sum += bias[c];
      if (FINISH == 2) {
        float more = 0.0f;
        TILE_ROLLED
        for (int r = 0; r < dims[13]; r++)
          more += float(add[size_t(o) * size_t(dims[13]) + size_t(r)]) * float(mix[c * dims[13] + r]);
        y[size_t(o) * size_t(OUT) + size_t(c)] = T(more);
      }
      if (FINISH) sum = conv_finish_value(sum, norm, FINISH == 2 ? (const device T*)y : add, dims, OUT, c, o);
      y[size_t(o) * size_t(OUT) + size_t(c)] = T(o < dims[7] ? sum : 0.0f);
    }
  }
}
