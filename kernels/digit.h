#ifndef MLXSPARSE_DIGIT
#define MLXSPARSE_DIGIT
// A pass of a sort by digits of at most 7 bits (digit_counts, digit_places). A threadgroup takes 256 STEPS places, each of
// its eight simdgroups 32 STEPS of them that lie together; a step of a simdgroup are 32 places.
METAL_FUNC uint digit_lanes(uint digit, int bits) { // that have the same, of so many bits
#ifdef STAGE_CUDA
  return __match_any_sync(0xffffffffu, digit);
#else
  uint same = 4294967295u;
  for (int b = 0; b < bits; b++) {
    bool one = (digit >> uint(b) & 1u) != 0u;
    uint ones = uint(ulong(simd_ballot(one)));
    same &= one ? ones : ~ones;
  }
  return same;
#endif
}

template <int STEPS> struct digit_steps {
  int row[STEPS];
  uint digit[STEPS];
  uint alike[STEPS]; // lanes with the same digit, 0 where there is no place

  // i: the place of this lane in the first step. All loads are on their way before the first is needed.
  METAL_FUNC void load(
      const device uint* keys, const device int* rows, uint i, uint n, bool first, int shift, int bits) thread {
    for (int r = 0; r < STEPS; r++) {
      uint at = i + 32u * uint(r);
      row[r] = at >= n ? -1 : first ? int(at) : min(rows[at], int(n) - 1);
    }
    uint none = 1u << uint(bits);
    for (int r = 0; r < STEPS; r++) digit[r] = row[r] < 0 ? none : keys[row[r]] >> uint(shift) & (none - 1u);
    for (int r = 0; r < STEPS; r++) {
      uint same = digit_lanes(digit[r], bits + 1);
      alike[r] = row[r] < 0 ? 0u : same;
    }
  }

  METAL_FUNC uint before(int r, uint lane) thread { return uint(popcount(alike[r] & ((1u << lane) - 1u))); }

  // Adds this simdgroup's places of each digit to counts[128], which it alone writes.
  METAL_FUNC void count(threadgroup int* counts, uint lane) thread {
    for (int r = 0; r < STEPS; r++) {
      if (alike[r] != 0u && before(r, lane) == 0u) counts[digit[r]] += int(popcount(alike[r]));
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
};
#endif
