// Rows of channels in pieces of 16 bytes. A row's pieces are L threads', at most 32 of a threadgroup (its y); 256 threads are
// 256 / L rows at once.
#ifndef MLXSPARSE_NORM
#define MLXSPARSE_NORM
METAL_FUNC float norm_value(uint word, int, float) { return as_type<float>(word); }
template <typename T> METAL_FUNC float norm_value(uint word, int part, T) {
  return float(as_type<T>(ushort(word >> uint(16 * part))));
}
METAL_FUNC uint norm_word(float x, int, float) { return as_type<uint>(x); }
template <typename T> METAL_FUNC uint norm_word(float x, int part, T) {
  return uint(as_type<ushort>(T(x))) << uint(16 * part);
}
template <typename T> struct norm_piece {
  static constexpr constant int PER = 4 / int(sizeof(T)); // values of a word
  uint w[4];
  METAL_FUNC void clear() thread {
    TILE_UNROLL
    for (int i = 0; i < 4; i++) w[i] = 0u;
  }
  METAL_FUNC float get(int i) thread { return norm_value(w[i / PER], i % PER, T(0.0f)); }
  METAL_FUNC void set(int i, float x) thread { w[i / PER] |= norm_word(x, i % PER, T(0.0f)); }
  // n values exist at p; wide: all of them, and p is aligned
  METAL_FUNC void load(const device T* p, int n, bool wide) thread {
    if (wide) {
      uint4 raw = *(const device uint4*)p;
      w[0] = raw.x;
      w[1] = raw.y;
      w[2] = raw.z;
      w[3] = raw.w;
    } else {
      clear();
      TILE_UNROLL
      for (int i = 0; i < 4 * PER; i++)
        if (i < n) set(i, float(p[i]));
    }
  }
  METAL_FUNC void store(device T* p, int n, bool wide) thread {
    if (wide) {
      uint4 raw;
      raw.x = w[0];
      raw.y = w[1];
      raw.z = w[2];
      raw.w = w[3];
      *(device uint4*)p = raw;
    } else {
      TILE_UNROLL
      for (int i = 0; i < 4 * PER; i++)
        if (i < n) p[i] = T(get(i));
    }
  }
};
template <typename T> METAL_FUNC bool norm_aligned(const device T* p, int channels) {
  return (size_t(p) & 15) == 0 && channels % (16 / int(sizeof(T))) == 0;
}
// V numbers of columns from p on, of which n exist; wide: all of them, and p is aligned
template <int V> METAL_FUNC void norm_columns(thread float* to, const device float* p, int n, bool wide) {
  if (wide) {
    TILE_UNROLL
    for (int i = 0; i < V; i += 4) {
      float4 four = *(const device float4*)(p + i);
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  } else {
    TILE_UNROLL
    for (int i = 0; i < V; i++) to[i] = i < n ? p[i] : 0.0f;
  }
}
METAL_FUNC int norm_lanes(int channels, int values) { return min((channels + values - 1) / values, 32); }
// Rows of each of `parts` parts: of the active rows alone, so that sums do not depend on padding.
METAL_FUNC int norm_rows(int active, int parts) { return max((active + parts - 1) / parts, 32); }
#endif
