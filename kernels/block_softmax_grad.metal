// Gradient of the scores of block_softmax: dt = y * (ct - sum of y * ct over the row + gradient of lse). A simdgroup is a row.
// in: ct, y [Z, nnz, br, bc] T, lse_ct[Z, H, M] float32, ptr[H * R + 1], cols[nnz] int32
//     dims = {R, nnz, br, bc, M, N, H, lse_ct is read}
// out: dt[Z, nnz, br, bc] float32, 0 outside the matrix.   grid (256 * ceil(H * R * br / 8), Z, 1).   template: T
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
float sum = 0.0f;
for (int pass = 0; pass < 2; pass++) {
  for (int t = lane; t < entries * bc; t += 32) {
    int e = first + t / bc, c = t % bc;
    int place = cols[e];
    bool inner = live && place >= 0 && place <= columns / bc && place * bc + c < columns;
    size_t from = ((size_t(z) * size_t(nnz) + size_t(e)) * size_t(br) + size_t(inside)) * size_t(bc) + size_t(c);
    float p = inner ? float(y[from]) : 0.0f;
    float g = inner ? float(ct[from]) : 0.0f;
    if (pass == 0) sum += p * g;
    else dt[from] = p == 0.0f ? 0.0f : p * (g - sum); // also where the sum is NaN
  }
  if (pass == 0) {
    sum = simd_sum(sum);
    if (live && dims[7] != 0) sum -= lse_ct[(size_t(z) * size_t(heads) + size_t(head)) * size_t(rows) + size_t(row)];
  }
}
