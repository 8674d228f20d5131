// What attention leaves of some keys: the largest score, the sum of exp(score - that), and as many times
// the values. Where keys were split, a split's part lies in scratch: [rows, heads, SPLITS, value_dim + 2].

#define MINUS_INFINITY uintBitsToFloat(0xFF800000u)

// Before exp(): a maximum of -inf would make NaN of scores that are -inf.
float finite_or_zero(float most) { return most == MINUS_INFINITY ? 0.0 : most; }

// What the sum of values is multiplied by: one by the sum of all weights. A sink's logit takes its share
// of the softmax and has no value.
float share_of(float most, float sum, bool has_sink, float sink) {
    if (sum == 0.0)
        return 0.0;
    if (!has_sink)
        return 1.0 / sum;
    const float shift = finite_or_zero(max(most, sink));
    const float kept = exp(most - shift);
    return kept / (sum * kept + exp(sink - shift));
}
