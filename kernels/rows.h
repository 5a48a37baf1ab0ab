// Kernels over (rows, channels): 256 threads, a simdgroup is a row, its lanes are 32 channels.
// grid (256 * ceil(rows / 8), ceil(channels / 32), 1)
#ifndef MLXSPARSE_ROWS
#define MLXSPARSE_ROWS
METAL_FUNC bool row_exists(int row, int rows) { return row >= 0 && row < rows; }
// `value` takes the place of `best` as a maximum: the first of equals stays, NaN wins over numbers.
METAL_FUNC bool exceeds(float value, float best) { return value > best || (value != value && best == best); }
#endif
