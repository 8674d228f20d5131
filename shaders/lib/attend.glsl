// Shared by attend.comp and attend_merge.comp. The partial result of attention over some of the
// keys is the max score m, the sum of exp(score - m), and the sum of exp(score - m) * value. If
// keys are split, partial results are in scratch memory: [rows, heads, SPLITS, value_dim + 2].

#define MINUS_INFINITY uintBitsToFloat(0xFF800000u)

// The value to subtract before exp(). If all scores are -inf, subtracting their max would give NaN.
float finite_or_zero(float max_score) { return max_score == MINUS_INFINITY ? 0.0 : max_score; }

// Returns the factor for the weighted sum of values: 1 / (sum of all softmax weights). An attention
// sink is a logit that takes part in the softmax and has no value.
float share_of(float max_score, float sum, bool has_sink, float sink) {
    if (sum == 0.0)
        return 0.0;
    if (!has_sink)
        return 1.0 / sum;
    const float shift = finite_or_zero(max(max_score, sink));
    const float rescale = exp(max_score - shift);
    return rescale / (sum * rescale + exp(sink - shift));
}
