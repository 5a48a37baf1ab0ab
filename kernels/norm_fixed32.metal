// A norm by statistics that are given: y = (x - mean) / sqrt(var + eps) * weight + bias, plus `add`, and 0 where that is less.
// in: x[N, C], add[N, C] T, mean[C], var[C], weight[C], bias[C] float32; dims = {N, C, active, eps (its bits), relu, has add,
//     rows of a threadgroup}
// out: y[N, C] T, 0 in rows at and past `active`.   grid: x ceil(N / dims[6]), y ceil(C / (512 / bytes of T)).   template: T
constexpr int V = 16 / int(sizeof(T));
threadgroup float scales[32 * V];
threadgroup float shifts[32 * V];
int channels = dims[1], tid = int(thread_index_in_threadgroup), col0 = int(threadgroup_position_in_grid.y) * 32 * V;
if (col0 + tid < channels) // of 16 bits: 32 * V threads
  norm_fixed_line(scales, shifts, mean, var, weight, bias, as_type<float>(dims[3]), col0 + tid, tid);
threadgroup_barrier(mem_flags::mem_threadgroup);
norm_fixed_rows(x, add, y, scales, shifts, dims, int(threadgroup_position_in_grid.x) * dims[6], col0, tid);
