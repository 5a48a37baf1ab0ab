// Adds column_parts in a fixed order. in: parts[P, 2, C] float32; dims = {P, C, rows, rows of a part, mode}
//     rows: active rows, of which part p has those from p * (rows of a part) on
// out: total[2, C] float32. mode 0: mean (less shift) and biased variance; 1: the two sums
// grid: x 1, y ceil(C / 32); 256 threads: a simdgroup takes every 8th part
threadgroup float sums[2 * 8 * 32];
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int c = int(threadgroup_position_in_grid.y) * 32 + lane;
int channels = dims[1], rows = dims[2];
bool inside = c < channels;
bool moments = dims[4] == 0;
float one = 0.0f, two = 0.0f;
for (int p = sg; p < dims[0]; p += 8) {
  float share = moments ? float(max(min(rows - p * dims[3], dims[3]), 0)) : 1.0f;
  if (inside) {
    one += share * parts[(size_t(p) * 2) * size_t(channels) + size_t(c)];
    two += parts[(size_t(p) * 2 + 1) * size_t(channels) + size_t(c)];
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
  float n = float(max(rows, 1));
  float mean = one / n;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float between = 0.0f;
  for (int p = sg; p < dims[0]; p += 8) {
    float share = float(max(min(rows - p * dims[3], dims[3]), 0));
    if (inside) {
      float away = parts[(size_t(p) * 2) * size_t(channels) + size_t(c)] - mean;
      between += share * away * away;
    }
  }
  sums[sg * 32 + lane] = between;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int s = 0; s < 8; s++) two += sums[s * 32 + lane];
  one = mean;
  two /= n;
}
if (inside && sg == 0) {
  total[c] = one;
  total[size_t(channels) + size_t(c)] = two;
}
