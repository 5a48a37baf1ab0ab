// What a norm by statistics that are given multiplies and adds: scale = weight / sqrt(var + eps), shift = bias - mean * scale.
// in: mean[C], var[C], weight[C], bias[C] T; dims = {C, eps (its bits)}
// out: line[2, C] float32.   grid: x ceil(C / 256).   template: T
int c = int(thread_position_in_grid.x);
if (c < dims[0]) {
  float scale = metal::rsqrt(float(var[c]) + as_type<float>(dims[1])) * float(weight[c]);
  line[c] = scale;
  line[dims[0] + c] = float(bias[c]) - float(mean[c]) * scale;
}
