// Scores of block-sparse softmax and attention: what is added to them and what masks them.
#ifndef MLXSPARSE_BLOCK_SCORES
#define MLXSPARSE_BLOCK_SCORES
// CUDA has functions of these names (stage.cuh).
#ifndef STAGE_CUDA
METAL_FUNC float score_exp(float x) { return exp(x); }
METAL_FUNC float score_exp2(float x) { return exp2(x); }
METAL_FUNC float score_log(float x) { return log(x); }
#endif
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
