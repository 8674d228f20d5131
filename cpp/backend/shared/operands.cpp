#include "backend/shared/operands.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace plait {

// YaRN's ramp extends from the pair that makes beta_fast turns over the original context to the
// pair that makes beta_slow turns.
RopeFrequencies rope_frequencies(const Rope& rope) {
    RopeFrequencies result{rope.base, rope.scale, rope.extrapolation, 0.0, 0.0, rope.n_rot};
    if (rope.extrapolation == 0.0) return result;
    const auto pair_of = [&](double turns) {
        return rope.n_rot *
               std::log(static_cast<double>(rope.n_ctx_original) / (turns * 2 * std::numbers::pi)) /
               (2 * std::log(rope.base));
    };
    result.low = std::max(0.0, std::floor(pair_of(rope.beta_fast)));
    result.high = std::min(rope.n_rot - 1.0, std::ceil(pair_of(rope.beta_slow)));
    return result;
}

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    PLAIT_CHECK(storage.shape.rank == 2 && heads > 0 && storage.shape[1] % heads == 0);
    const int64_t elements = storage.shape[1] / heads;
    PLAIT_CHECK(elements % info(storage.dtype).block_elements == 0);
    const auto bytes = [&](int64_t n) {
        return static_cast<int64_t>(row_bytes(storage.dtype, static_cast<uint64_t>(n)));
    };
    return {storage.dtype, elements, bytes(elements), bytes(storage.shape[1])};
}

}  // namespace plait
