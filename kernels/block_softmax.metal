// Softmax of x * scale + addends over the stored blocks of each row, fp32; a simdgroup is a row, its lanes are elements.
// in: x[Z, nnz, br, bc] T, scale[1], bias (Zb, Hb, M, N) or (Zb, nnz, br, bc), keys (Z, KH, N), pairs (M, N) float32,
//     q_ids[M], k_ids[N], ptr[H * R + 1], cols[nnz] int32 (blocks of a row are stored one after the other)
//     dims = {R, nnz, br, bc, M, N, H, bias: 0 none 1 dense 2 packed, Zb, Hb, keys: KH or 0, pairs, ids, causal, offset, Z}
// out: y[Z, nnz, br, bc] T, 0 in masked rows and outside the matrix; lse[Z, H, M] float32.
// grid (256 * ceil(H * R * br / 8), Z, 1).   template: T
int lines = dims[0], nnz = dims[1], br = dims[2], bc = dims[3], rows = dims[4], columns = dims[5], heads = dims[6];
int at = int(threadgroup_position_in_grid.x) * 8 + int(simdgroup_index_in_threadgroup);
int z = int(threadgroup_position_in_grid.y);
int lane = int(thread_index_in_simdgroup);
bool there = at < heads * lines * br;
int line = there ? at / br : 0, inside = there ? at % br : 0;
int head = line / lines;
int row = line % lines * br + inside;
bool live = there && row < rows;
int first = there ? max(0, ptr[line]) : 0;
int entries = there ? max(0, min(nnz, ptr[line + 1]) - first) : 0;
int id = live && dims[12] != 0 ? q_ids[row] : 0;
float factor = scale[0];
float top = -INFINITY, total = 0.0f;
bool bad = false;
for (int pass = 0; pass < 2; pass++) {
  for (int t = lane; t < entries * bc; t += 32) {
    int e = first + t / bc, c = t % bc;
    int place = cols[e];
    int col = place >= 0 && place <= columns / bc ? place * bc + c : columns;
    size_t from = ((size_t(z) * size_t(nnz) + size_t(e)) * size_t(br) + size_t(inside)) * size_t(bc) + size_t(c);
    bool inner = live && col < columns;
    float s = -INFINITY;
    if (inner) {
      s = float(x[from]) * factor;
      size_t pair = size_t(row) * size_t(columns) + size_t(col);
      if (dims[7] == 1) {
        size_t item = size_t(dims[8] > 1 ? z : 0) * size_t(dims[9]) + size_t(dims[9] > 1 ? head : 0);
        s = block_score(s, bias[item * size_t(rows) * size_t(columns) + pair], true);
      }
      if (dims[7] == 2) {
        size_t packed = dims[8] > 1 ? from : from - size_t(z) * size_t(nnz) * size_t(br) * size_t(bc);
        s = block_score(s, bias[packed], true);
      }
      bool allowed = s != -INFINITY;
      if (dims[10] > 0) {
        size_t key_head = size_t(z) * size_t(dims[10]) + size_t(head * dims[10] / heads);
        s = block_score(s, keys[key_head * size_t(columns) + size_t(col)], allowed);
      }
      if (dims[11] != 0) s = block_score(s, pairs[pair], s != -INFINITY);
      if (dims[12] != 0 && k_ids[col] != id) s = -INFINITY;
      if (dims[13] != 0 && col > row + dims[14]) s = -INFINITY;
    }
    if (pass == 0) {
      bad = bad || s != s;
      block_join(top, total, s, s == -INFINITY ? 0.0f : 1.0f);
    } else {
      bool counts = inner && s != -INFINITY && total != 0.0f; // NaN in a row stays with the keys that it sees
      y[from] = T(counts ? score_exp(s - top) / total : 0.0f);
    }
  }
  if (pass == 0) {
    for (ushort d = 16; d > 0; d /= 2) block_join(top, total, simd_shuffle_xor(top, d), simd_shuffle_xor(total, d));
    if (simd_any(bad)) total = as_type<float>(0x7fc00000u);
  }
}
if (live && lane == 0) {
  lse[(size_t(z) * size_t(heads) + size_t(head)) * size_t(rows) + size_t(row)] = total == 0.0f ? -INFINITY : score_log(total) + top;
}
