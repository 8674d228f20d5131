#include "model/rope.h"

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// Returns YaRN's magnitude for a context extended by `factor`: 1 + 0.1 share ln(factor); section
// 3.4 with share = 1.
double yarn_magnitude(double factor, double share = 1.0) {
    return factor <= 1.0 ? 1.0 : 0.1 * share * std::log(factor) + 1.0;
}

}  // namespace

Rope read_rope(const Hparams& hp, int head_dim, RopePairs pairs) {
    Rope rope;
    if (pairs == RopePairs::none) return rope;
    rope.interleaved = pairs == RopePairs::neighbours;
    rope.n_rot = hp.count("rope.dimension_count", head_dim, head_dim);
    if (rope.n_rot % 2 != 0)
        hp.refuse("rope.dimension_count", text("expected an even number, got ", rope.n_rot));
    rope.base = hp.positive("rope.freq_base", 10000.0f);

    const std::string type = hp.string("rope.scaling.type", "linear");
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
        throw UnsupportedError(text(hp.key("rope.scaling.type"), ": unknown scaling \"", type,
                                    "\"; known are none, linear, yarn, longrope"));
    // In old files the key of the factor is rope.scale_linear. 0 means that there is none.
    const char* const key =
        hp.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    const float factor = hp.number(key, 0.0f) == 0.0f ? 1.0f : hp.positive(key);
    if (type != "none") rope.scale = 1.0 / factor;
    rope.magnitude = hp.positive("rope.scaling.attn_factor", 1.0f);
    if (type != "yarn") rope.magnitude *= hp.positive("rope.scaling.yarn_attn_factor", 1.0f);
    rope.n_ctx_original = hp.count("rope.scaling.original_context_length", INT32_MAX,
                                   static_cast<int>(hp.index("context_length", INT32_MAX, 0)));
    if (type == "yarn") {
        rope.extrapolation = hp.number("rope.scaling.yarn_ext_factor", 1.0f);
        rope.beta_fast = hp.positive("rope.scaling.yarn_beta_fast", 32.0f);
        rope.beta_slow = hp.positive("rope.scaling.yarn_beta_slow", 1.0f);
        rope.magnitude *= yarn_magnitude(factor);
        // The model includes this share of the magnitude in its scale of scores.
        const float share = hp.number("rope.scaling.yarn_log_multiplier", 0.0f);
        if (share != 0.0f) rope.magnitude /= yarn_magnitude(factor, share);
        if (rope.n_ctx_original == 0)
            hp.refuse("rope.scaling.original_context_length", "is required for YaRN scaling");
    }
    return rope;
}

bool has_rope_sections(const Hparams& hp) {
    if (!hp.has("rope.dimension_sections")) return false;
    const std::vector<int64_t> pairs = hp.metadata().integers(hp.key("rope.dimension_sections"));
    return pairs.size() > 1 && pairs[0] > 0 && pairs[1] > 0;
}

Rope read_mrope(const Hparams& hp, int head_dim, bool in_turn) {
    constexpr std::string_view kSections = "rope.dimension_sections";
    Rope rope = read_rope(hp, head_dim, RopePairs::halves);
    rope.in_turn = in_turn;
    const std::vector<int64_t> pairs = hp.metadata().integers(hp.key(kSections));
    if (pairs.size() < 3 || pairs.size() > std::size(rope.sections))
        hp.refuse(kSections, text("expected 3 or 4 numbers, got ", pairs.size()));
    int64_t covered = 0;
    for (size_t axis = 0; axis < pairs.size(); ++axis) {
        if (pairs[axis] < 0 || pairs[axis] > rope.n_rot / 2)
            hp.refuse(kSections,
                      text("expected 0 to ", rope.n_rot / 2, " pairs, got ", pairs[axis]));
        rope.sections[axis] = static_cast<int>(pairs[axis]);
        covered += pairs[axis];
    }
    if (covered == 0) hp.refuse(kSections, "expected some pairs, got none");
    return rope;
}

Rope without_scaling(Rope rope) {
    rope.scale = 1.0;
    rope.extrapolation = 0.0;
    rope.magnitude = 1.0;
    return rope;
}

Rope read_windowed_gemma_rope(const Hparams& hp, const Rope& full) {
    constexpr std::string_view kFactor = "rope.scaling.attn_factor";
    if (hp.number(kFactor, 1.0f) != 1.0f) hp.refuse(kFactor, "expected 1 in a model with windows");
    Rope rope = without_scaling(full);
    rope.base = hp.positive("rope.freq_base_swa", 10000.0f);
    return rope;
}

void read_long_rope_factors(const Weights& weights, Rotation& rotation) {
    if (!weights.has("rope_factors_long.weight") && !weights.has("rope_factors_short.weight"))
        return;
    rotation.factors = weights.get("rope_factors_short.weight", {rotation.rope.n_rot / 2});
    rotation.long_factors = weights.get("rope_factors_long.weight", {rotation.rope.n_rot / 2});
}

Weight read_rope_factors(const Weights& weights, const Rope& rope) {
    return weights.find("rope_freqs.weight", {rope.n_rot / 2});
}

}  // namespace plait
