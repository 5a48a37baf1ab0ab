// The weight of the input gradient: back[r, t, o] = w[o, t, r], or w[o, K - 1 - t, r], zeros for o from OUT on.
// in: w[OUT, K, RED] T; dims = {OUT, K, RED, WIDE, flip}   out: back[RED, K, WIDE] T
// grid (256 * ceil(WIDE / 32) * ceil(RED / 32), K, 1)
threadgroup T tile[32 * 33];
int OUT = dims[0], K = dims[1], RED = dims[2], wide = dims[3];
int lane = int(thread_index_in_simdgroup), sg = int(simdgroup_index_in_threadgroup);
int across = (wide + 31) / 32;
int o0 = int(threadgroup_position_in_grid.x) % across * 32, r0 = int(threadgroup_position_in_grid.x) / across * 32;
int t = int(threadgroup_position_in_grid.y), from = dims[4] != 0 ? K - 1 - t : t;
for (int i = sg; i < 32; i += 8) {
  bool ok = o0 + i < OUT && r0 + lane < RED;
  tile[i * 33 + lane] = ok ? w[(size_t(o0 + i) * size_t(K) + size_t(from)) * size_t(RED) + size_t(r0 + lane)] : T(0.0f);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int i = sg; i < 32; i += 8)
  if (r0 + i < RED && o0 + lane < wide)
    back[(size_t(r0 + i) * size_t(K) + size_t(t)) * size_t(wide) + size_t(o0 + lane)] = tile[lane * 33 + i];
