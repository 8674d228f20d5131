#include "backend/vulkan/ops/turns.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plait::vulkan {
namespace {

// The pairs between which YaRN interpolates more and more: those that turn beta_fast and beta_slow
// times over the original context.
struct Ramp {
    double low = 0.0, high = 0.0;
};

Ramp ramp_of(const Rope& rope) {
    const auto pair_of = [&](double turns) {
        return rope.n_rot *
               std::log(static_cast<double>(rope.n_ctx_original) / (turns * 2 * std::numbers::pi)) /
               (2 * std::log(rope.base));
    };
    return {std::max(0.0, std::floor(pair_of(rope.beta_fast))),
            std::min(rope.n_rot - 1.0, std::ceil(pair_of(rope.beta_slow)))};
}

double frequency(const Rope& rope, const Ramp& ramp, int pair, double factor) {
    const double whole = std::pow(rope.base, -2.0 * pair / rope.n_rot) / factor;
    if (rope.extrapolation == 0.0) return whole * rope.scale;
    const double along = (pair - ramp.low) / std::max(0.001, ramp.high - ramp.low);
    const double mix = (1.0 - std::clamp(along, 0.0, 1.0)) * rope.extrapolation;
    return whole * (rope.scale * (1.0 - mix) + mix);
}

uint64_t fraction_of_turn(double radians) {
    const double turns = radians / (2 * std::numbers::pi);
    return static_cast<uint64_t>(std::ldexp(turns - std::floor(turns), 63)) << 1;
}

}  // namespace

Ref turns(const Rope& rope, std::optional<NodeId> factors, Binder& binder) {
    const std::vector<float> by = factors ? binder.values(*factors) : std::vector<float>{};
    const Ramp ramp = rope.extrapolation == 0.0 ? Ramp{} : ramp_of(rope);
    std::vector<uint64_t> result;
    for (int pair = 0; pair < rope.n_rot / 2; ++pair) {
        const double factor = factors ? by[static_cast<size_t>(pair)] : 1.0;
        result.push_back(fraction_of_turn(frequency(rope, ramp, pair, factor)));
    }
    return binder.constant(result);
}

}  // namespace plait::vulkan
