// Adds the parts of norm_moments in a fixed order: what norm_apply and its gradient need of each column, and running statistics.
// in: parts[P + 1, 2, C] float32, weight[C], bias[C] T, running_mean[C], running_var[C] float32
//     dims = {N, C, active, P, eps, momentum (their bits), track}
// out: coef[6, C] float32: mean, what float32 leaves of it, biased variance, 1 / sqrt(var + eps), that times weight, and
//     bias less the second times the fifth; moved_mean, moved_var[C] float32 (track): (1 - momentum) of the running ones
//     and momentum of mean and unbiased variance, the running ones where no row is active
// grid: x 1, y ceil(C / 8); 256 threads: 8 columns, each of every 32nd part.   template: T
threadgroup float ones[256];
threadgroup float twos[256];
int channels = dims[1], active = min(dims[0], dims[2]);
int tid = int(thread_index_in_threadgroup), at = tid % 8, slice = tid / 8;
int c = int(threadgroup_position_in_grid.y) * 8 + at;
int rows = norm_rows(active, dims[3]), used = (active + rows - 1) / rows;
bool on = c < channels;
size_t step = size_t(channels) * 2;
float one = 0.0f, two = 0.0f;
if (on)
  for (int p = slice; p < used; p += 32) {
    one += float(min(active - p * rows, rows)) * parts[size_t(p) * step + size_t(c)];
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
  float first = parts[size_t(dims[3]) * step + size_t(c)], mean = first + one, back = mean - first;
  float low = (first - (mean - back)) + (one - back), var = two / n;
  float rstd = metal::rsqrt(var + as_type<float>(dims[4])), scale = rstd * float(weight[c]);
  coef[c] = mean;
  coef[size_t(channels) + size_t(c)] = low;
  coef[step + size_t(c)] = var;
  coef[step + size_t(channels) + size_t(c)] = rstd;
  coef[2 * step + size_t(c)] = scale;
  coef[2 * step + size_t(channels) + size_t(c)] = float(bias[c]) - low * scale;
  if (dims[6] != 0) {
    float share = active > 0 ? as_type<float>(dims[5]) : 0.0f;
    moved_mean[c] = (1.0f - share) * running_mean[c] + share * mean;
    moved_var[c] = (1.0f - share) * running_var[c] + share * (two / max(n - 1.0f, 1.0f));
  }
}
