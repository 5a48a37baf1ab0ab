// Rows that a list names, staged for attention inside segments (segment_attend.metal, segment_attend_grad.metal). Follows
// tile.h and stage.h.
#ifndef MLXSPARSE_SEGMENT
#define MLXSPARSE_SEGMENT
// Row of a position, -1 where there is none.
METAL_FUNC int segment_row(const device int* list, int position, bool live, int rows) {
  int row = live ? list[position] : -1;
  return row >= 0 && row < rows ? row : -1;
}
// An end of a query's keys, inside the `size` positions that there are.
METAL_FUNC int segment_end(const device int* span, int place, int size) { return clamp(span[place], 0, size); }
// COUNT rows of one head into threadgroup memory, DIM channels each; positions past `live` and channels past `channels` are 0.
template <typename T, int COUNT, int DIM, int LD, int THREADS>
METAL_FUNC void segment_fetch(threadgroup T* to, const device T* from, const device int* list, int start, int live, int rows,
                              int heads, int head, int channels, bool wide, int tid) {
  constexpr int VEC = 16 / int(sizeof(T));
  const device T* base = from + head * channels;
  int stride = heads * channels;
  for (int e = tid; e < COUNT * DIM / VEC; e += THREADS) {
    int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC;
    int row = segment_row(list, start + r, r < live, rows);
    int n = row >= 0 ? channels - c : 0;
    stage_fetch(to + r * LD + c, base + (n > 0 ? size_t(row) * size_t(stride) + size_t(c) : size_t(0)), n, wide);
  }
}
// 2^x, as exact as score_exp. CUDA has one of its own (stage.cuh).
#ifndef STAGE_CUDA
METAL_FUNC float segment_exp2(float x) { return exp2(x); }
#endif
// Whether a row of the N that a step meets is marked; the same in all lanes.
template <int N> METAL_FUNC bool segment_marked(const threadgroup float* mark, int lane) {
  bool found = false;
  for (int c = lane; c < N; c += 32) found = found || !(mark[c] == 0.0f);
  return simd_any(found);
}
constant constexpr float SEGMENT_LOG2E = 1.44269504f;
METAL_FUNC uint segment_exponent(half) { return 0x7c007c00u; }
METAL_FUNC uint segment_exponent(bfloat) { return 0x7f807f80u; }
METAL_FUNC uint segment_exponent(float) { return 0x7f800000u; }
// Whether a word holds an element that is not finite.
template <typename T> METAL_FUNC bool segment_bad(uint word) {
  uint all = segment_exponent(T(0.0f));
  if (sizeof(T) == 4) return (word & all) == all;
  return (word & all & 0xffffu) == (all & 0xffffu) || (word & all & 0xffff0000u) == (all & 0xffff0000u);
}
// After this thread's fetches have landed: what is not finite becomes 0, and its row is marked NaN. A product with 0 must not
// carry it to queries that do not see the row. The lanes that hold a row are neighbours. FIRST: set marks, else add to them.
template <typename T, int COUNT, int DIM, int LD, int THREADS, bool FIRST>
METAL_FUNC void segment_clean(threadgroup T* rows, threadgroup float* mark, int tid) {
  constexpr int VEC = 16 / int(sizeof(T));
  for (int e = tid; e < COUNT * DIM / VEC; e += THREADS) {
    int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC;
    uint4 word = *(threadgroup uint4*)(rows + r * LD + c);
    uint bad = uint(segment_bad<T>(word.x) || segment_bad<T>(word.y) || segment_bad<T>(word.z) || segment_bad<T>(word.w));
    if (bad != 0u) {
      for (int i = 0; i < VEC; i++) {
        float x = float(rows[r * LD + c + i]);
        if (x - x != 0.0f) rows[r * LD + c + i] = T(0.0f);
      }
    }
    for (int d = 1; d < DIM / VEC; d *= 2) bad |= simd_shuffle_xor(bad, ushort(d));
    if (c == 0 && (FIRST || bad != 0u)) mark[r] = bad != 0u ? as_type<float>(0x7fc00000u) : 0.0f;
  }
}
#endif
