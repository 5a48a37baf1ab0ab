// Scores of block-sparse softmax and attention: what is added to them and what masks them.
#ifndef MLXSPARSE_BLOCK_SCORES
#define MLXSPARSE_BLOCK_SCORES
// CUDA has functions of these names (stage.cuh).
#ifndef STAGE_CUDA
METAL_FUNC float score_exp(float x) { return exp(x); }
METAL_FUNC float score_exp2(float x) { return exp2(x); }
METAL_FUNC float score_log(float x) { return log(x); }
#endif
// The bits of infinity in each element of 32 bits; whether one of them is infinite or no number.
METAL_FUNC uint score_infinity(float) { return 0x7f800000u; }
METAL_FUNC uint score_infinity(half) { return 0x7c007c00u; }
METAL_FUNC uint score_infinity(bfloat) { return 0x7f807f80u; }
template <typename T> METAL_FUNC bool score_infinite(uint bits, uint all) {
  uint high = sizeof(T) == 2 ? all & 0xffff0000u : all, low = all & 0xffffu;
  return (bits & high) == high || (sizeof(T) == 2 && (bits & low) == low);
}
// A masked score is -inf, whatever it held. The flags of an addend say which of the arrays are read.
METAL_FUNC float block_score(float s, float added, bool allowed) {
  s += added;
  return allowed && added != -INFINITY ? s : -INFINITY;
}
// Running maximum and sum of exponentials of a row; NaN stays.
METAL_FUNC void block_join(thread float& top, thread float& total, float other_top, float other_total) {
  float higher = max(top, other_top);
  float safe = higher == -INFINITY ? 0.0f : higher;
  total = total * score_exp(top - safe) + other_total * score_exp(other_top - safe);
  top = higher;
}
#endif
