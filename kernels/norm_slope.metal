// Adds the parts of norm_sums in a fixed order: what norm_grad needs of each column, and the gradients of weight and bias.
// in: parts[P, 2, C], coef[6, C] float32 (norm_coef); dims = {N, C, active, P}
// out: slopes[2, C] float32: factor of x - mean in dx, and the constant of dx; weight_grad[C], bias_grad[C] T
// grid: x 1, y ceil(C / 8); 256 threads: 8 columns, each of every 32nd part.   template: T
threadgroup float ones[256];
threadgroup float twos[256];
int channels = dims[1], active = min(dims[0], dims[2]);
int tid = int(thread_index_in_threadgroup), at = tid % 8, slice = tid / 8;
int c = int(threadgroup_position_in_grid.y) * 8 + at;
int rows = norm_rows(active, dims[3]), used = (active + rows - 1) / rows;
size_t step = size_t(channels) * 2;
float plain = 0.0f, crossed = 0.0f;
if (c < channels)
  for (int p = slice; p < used; p += 32) {
    plain += parts[size_t(p) * step + size_t(c)];
    crossed += parts[size_t(p) * step + size_t(channels) + size_t(c)];
  }
ones[tid] = plain;
twos[tid] = crossed;
threadgroup_barrier(mem_flags::mem_threadgroup);
plain = 0.0f;
crossed = 0.0f;
for (int s = 0; s < 32; s++) {
  plain += ones[s * 8 + at];
  crossed += twos[s * 8 + at];
}
if (c < channels && slice == 0) {
  float rstd = coef[step + size_t(channels) + size_t(c)], scale = coef[2 * step + size_t(c)];
  float n = float(max(active, 1)), slope = scale * rstd * rstd * (crossed / n);
  slopes[c] = slope;
  slopes[size_t(channels) + size_t(c)] = coef[size_t(channels) + size_t(c)] * slope - scale * (plain / n);
  weight_grad[c] = T(crossed * rstd);
  bias_grad[c] = T(plain);
}
