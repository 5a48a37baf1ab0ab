// Adds the parts of norm_moments (mode 0) or norm_sums (1) in a fixed order.
// in: parts[.., 2, C], stats[3, C] float32 (read in mode 1); dims = {N, C, active, P, mode, eps (its bits)}
// out: total[3, C] float32. mode 0: mean, what float32 leaves of it, biased variance; 1: the two sums, the second / deviation
// grid: x 1, y ceil(C / 8); 256 threads: 8 columns, each of every 32nd part
threadgroup float ones[256];
threadgroup float twos[256];
int channels = dims[1], active = min(dims[0], dims[2]);
int tid = int(thread_index_in_threadgroup), at = tid % 8, slice = tid / 8;
int c = int(threadgroup_position_in_grid.y) * 8 + at;
int rows = norm_rows(active, dims[3]), used = (active + rows - 1) / rows;
bool moments = dims[4] == 0, on = c < channels;
size_t step = size_t(channels) * 2;
float one = 0.0f, two = 0.0f;
if (on)
  for (int p = slice; p < used; p += 32) {
    float share = moments ? float(min(active - p * rows, rows)) : 1.0f;
    one += share * parts[size_t(p) * step + size_t(c)];
    two += parts[size_t(p) * step + size_t(channels) + size_t(c)];
  }
ones[tid] = one;
twos[tid] = two;
threadgroup_barrier(mem_flags::mem_threadgroup);
one = 0.0f;
two = 0.0f;
for (int s = 0; s < 32; s++) {
  one += ones[s * 8 + at];
  two += twos[s * 8 + at];
}
if (moments) {
  float n = float(max(active, 1)), between = 0.0f;
  one /= n;
  if (on)
    for (int p = slice; p < used; p += 32) {
      float away = parts[size_t(p) * step + size_t(c)] - one;
      between += float(min(active - p * rows, rows)) * away * away;
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ones[tid] = between;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < 32; s++) two += ones[s * 8 + at];
  if (on && slice == 0) { // the mean of x is the sum of two numbers: its float32, and the rest
    float shift = parts[size_t(dims[3]) * step + size_t(c)], mean = shift + one, back = mean - shift;
    total[c] = mean;
    total[size_t(channels) + size_t(c)] = (shift - (mean - back)) + (one - back);
    total[step + size_t(c)] = two / n;
  }
} else if (on && slice == 0) {
  total[c] = one;
  total[size_t(channels) + size_t(c)] = two;
  total[step + size_t(c)] = two * metal::rsqrt(stats[step + size_t(c)] + as_type<float>(dims[5]));
}
