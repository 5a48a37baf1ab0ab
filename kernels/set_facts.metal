// What the host reads of a set and of the sets that follow from it, in arrays of 8 bytes: MLX's CUDA backend keeps those
// where the host sees them, and moves larger ones.
// in: status[16] uint32 (coord_hash_insert), ends[G] int32 (bit_ends), outside[8] uint32 (status of site_bits)
//     dims = {L, L times: the last of its ends}, L at most 4
// out: repeated[2] uint32: status[0], 0; high_bx, high_yz, low_bx, low_yz [2] uint32: status[1 .. 8];
//     count0 .. count3 [2] int32: sites of a set, 1 if one lay outside; 0 past the last.   grid: one thread
if (thread_position_in_grid.x == 0u) {
  repeated[0] = status[0];
  repeated[1] = 0u;
  for (int a = 0; a < 2; a++) {
    high_bx[a] = status[1 + a];
    high_yz[a] = status[3 + a];
    low_bx[a] = status[5 + a];
    low_yz[a] = status[7 + a];
  }
  for (int l = 0; l < 4; l++) {
    device int* count = l == 0 ? count0 : l == 1 ? count1 : l == 2 ? count2 : count3;
    count[0] = l < dims[0] ? ends[dims[1 + l]] : 0;
    count[1] = l < dims[0] ? int(outside[l]) : 0;
  }
}
