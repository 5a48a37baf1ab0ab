// Kernels over (rows, channels): 256 threads, a simdgroup is a row, its lanes are 32 channels.
// grid (256 * ceil(rows / 8), ceil(channels / 32), 1)
#ifndef MLXSPARSE_ROWS
#define MLXSPARSE_ROWS
METAL_FUNC bool row_exists(int row, int rows) { return row >= 0 && row < rows; }
// `value` takes the place of `best` as a maximum: the first of equals stays, NaN wins over numbers.
METAL_FUNC bool exceeds(float value, float best) { return value > best || (value != value && best == best); }
// Values of a word of 32 bits, and a word of values; of float32 it holds one.
template <typename T> METAL_FUNC float word_value(uint w, int i) { return float(as_type<T>(ushort(w >> (16 * i)))); }
template <> METAL_FUNC float word_value<float>(uint w, int i) { return as_type<float>(w); }
template <typename T> METAL_FUNC uint word_of(float a, float b) {
  return uint(as_type<ushort>(T(a))) | uint(as_type<ushort>(T(b))) << 16;
}
template <> METAL_FUNC uint word_of<float>(float a, float b) { return as_type<uint>(a); }
#endif
