// Partial sums of columns over parts of consecutive rows, fp32, in a fixed order.
// in: x[N, C] T, ct[N, C] T, shift[C], delta[C] float32; dims = {N, C, active, rows of a part, mode}
//     mode 0: mean of x - shift over the part's active rows, and the sum of squares around that mean
//     mode 1: sums of ct, and of ct * (x - shift - delta)
// out: parts[P, 2, C] float32.   grid: x parts, y ceil(C / 32); 256 threads: a simdgroup takes every 8th row
threadgroup float sums[2 * 8 * 32];
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int part = int(threadgroup_position_in_grid.x), c = int(threadgroup_position_in_grid.y) * 32 + lane;
int channels = dims[1], first = part * dims[3], last = min(min(dims[0], dims[2]), first + dims[3]);
bool inside = c < channels;
bool moments = dims[4] == 0;
float offset = inside ? shift[c] : 0.0f;
float one = 0.0f, two = 0.0f;
if (inside) {
  float away = moments ? 0.0f : delta[c];
  for (int r = first + sg; r < last; r += 8) {
    size_t at = size_t(r) * size_t(channels) + size_t(c);
    float value = float(x[at]) - offset;
    float g = moments ? 1.0f : float(ct[at]);
    one += moments ? value : g;
    two += moments ? 0.0f : g * (value - away);
  }
}
sums[sg * 32 + lane] = one;
sums[(8 + sg) * 32 + lane] = two;
threadgroup_barrier(mem_flags::mem_threadgroup);
one = 0.0f;
two = 0.0f;
for (int s = 0; s < 8; s++) {
  one += sums[s * 32 + lane];
  two += sums[(8 + s) * 32 + lane];
}
if (moments) {
  float mean = last > first ? one / float(last - first) : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float squares = 0.0f;
  if (inside)
    for (int r = first + sg; r < last; r += 8) {
      float value = float(x[size_t(r) * size_t(channels) + size_t(c)]) - offset - mean;
      squares += value * value;
    }
  sums[sg * 32 + lane] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  one = mean;
  two = 0.0f;
  for (int s = 0; s < 8; s++) two += sums[s * 32 + lane];
}
if (inside && sg == 0) {
  parts[(size_t(part) * 2) * size_t(channels) + size_t(c)] = one;
  parts[(size_t(part) * 2 + 1) * size_t(channels) + size_t(c)] = two;
}
