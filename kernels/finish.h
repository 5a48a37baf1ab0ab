// What follows a convolution in the same pass, as norm_fixed.h has it: of the result rounded to T, y * scale + shift,
// plus `add`, and 0 where that is less. dims as conv_tiles.metal has them.
#ifndef MLXSPARSE_FINISH
#define MLXSPARSE_FINISH
// Scale and shift of a channel: of `line` (norm_line), or made from the norm's own parameters as norm_line makes them.
template <typename T> struct conv_norm {
  const device float* line;
  const device T* mean;
  const device T* var;
  const device T* gain;
  const device T* offset;
  int outs;
  bool own;
  float eps;
  METAL_FUNC float scale(int c) thread { return own ? metal::rsqrt(float(var[c]) + eps) * float(gain[c]) : line[c]; }
  METAL_FUNC float shift(int c, float scale) thread {
    return own ? float(offset[c]) - float(mean[c]) * scale : line[outs + c];
  }
};
template <typename T>
METAL_FUNC float conv_finish_value(float sum, conv_norm<T> norm, const device T* add, const device int* dims,
                                   int outs, int c, int row) {
  float scale = norm.scale(c), value = float(T(sum)) * scale + norm.shift(c, scale);
  if (dims[12] != 0) value += float(add[size_t(row) * size_t(outs) + size_t(c)]);
  return dims[11] != 0 && value < 0.0f ? 0.0f : value;
}
// V channels of a thread, from column c on, in rows that lie in threadgroup memory; `added` is aligned and holds all of them:
// `read` what is added to a row before `row` finishes it.
// V = 0: nothing follows.
template <typename T, int V> struct conv_finish {
  float scale[V], shift[V];
  const device T* add;
  int outs;
  bool more, relu;
  METAL_FUNC void begin(conv_norm<T> norm, const device T* added, const device int* dims, int channels, int c) thread {
    outs = channels;
    add = added + size_t(c);
    more = dims[12] != 0;
    relu = dims[11] != 0;
    TILE_UNROLL
    for (int e = 0; e < V; e++) {
      scale[e] = norm.scale(c + e);
      shift[e] = norm.shift(c + e, scale[e]);
    }
  }
  METAL_FUNC void read(thread norm_piece<T>& q, int row) thread {
    q.clear();
    if (more) q.load(add + size_t(row) * size_t(outs), V, true);
  }
  METAL_FUNC void row(threadgroup T* at, thread norm_piece<T>& q) thread {
    TILE_UNROLL
    for (int e = 0; e < V; e++) {
      float value = float(at[e]) * scale[e] + shift[e] + q.get(e);
      at[e] = T(relu && value < 0.0f ? 0.0f : value);
    }
  }
};
template <typename T> struct conv_finish<T, 0> {
  METAL_FUNC void begin(conv_norm<T>, const device T*, const device int*, int, int) thread {}
  METAL_FUNC void read(thread norm_piece<T>&, int) thread {}
  METAL_FUNC void row(threadgroup T*, thread norm_piece<T>&) thread {}
};
#endif
