#include "tensor/search.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "tensor/blocks/fit.h"
#include "tensor/blocks/pack.h"
#include "tensor/half.h"
#include "tensor/lattice_search.h"

namespace plait {
namespace {

constexpr Integers kAny8{-127, 127};
constexpr Table<2> kSigns{{-1, 1}};
constexpr Table<15> kE2m1{{-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12}};

// Converts levels or codes that are integers; NaN and infinities give integers of one byte.
void to_integers(const float* from, int count, int* to) {
    for (int i = 0; i < count; ++i) to[i] = round_within(from[i], -128, 127);
}

// Calls f(scale) for the f16 numbers next to `scale` and returns the bits of the one with the
// smallest result, which is stored in `min_error`.
template <typename F>
uint16_t best_half(float scale, float& min_error, F error_of) {
    const uint16_t nearest = f32_to_f16(scale);
    uint16_t best = nearest;
    min_error = error_of(f16_to_f32(nearest));
    for (const int step : {-1, 1}) {
        const auto other = static_cast<uint16_t>(nearest + step);
        if ((other & 0x7fff) >= 0x7c00 || (other & 0x8000) != (nearest & 0x8000)) continue;
        const float error = error_of(f16_to_f32(other));
        if (!(error < min_error)) continue;
        min_error = error;
        best = other;
    }
    return best;
}

// Blocks with one f16 scale.
template <typename Block, typename Levels>
void encode_scaled(const Levels& levels, const float* values, const float* weights, Block& block) {
    constexpr int kCount = Block::kElements;
    const Group group{values, weights, kCount};
    float found[kCount], error;
    const uint16_t scale = best_half(fit_scale(levels, group), error, [&](float near) {
        return level_error(levels, group, near, found);
    });
    level_error(levels, group, f16_to_f32(scale), found);
    int integers[kCount];
    to_integers(found, kCount, integers);
    pack(scale, integers, block);
}

// Blocks of 32 values with an f16 scale and an f16 minimum.
template <typename Block>
void encode_line(int max_code, const float* values, const float* weights, Block& block) {
    const Group group{values, weights, 32};
    const Line line = fit_line(group, max_code, true);
    float codes[32], error;
    uint16_t scale = f32_to_f16(line.scale);
    const uint16_t minimum = best_half(-line.minimum, error, [&](float near) {
        return line_error(group, max_code, {f16_to_f32(scale), -near}, codes);
    });
    scale = best_half(line.scale, error, [&](float near) {
        return line_error(group, max_code, {near, -f16_to_f32(minimum)}, codes);
    });
    line_error(group, max_code, {f16_to_f32(scale), -f16_to_f32(minimum)}, codes);
    int integers[32];
    to_integers(codes, 32, integers);
    pack(scale, minimum, integers, block);
}

// Blocks of 256 values with integer scales in [-max_scale - 1, max_scale] of kGroups groups.
template <int kGroups, typename Block, typename Levels>
class ScaledGroups {
public:
    ScaledGroups(const Levels& levels, int max_scale, const float* values, const float* weights)
        : levels_(levels), max_scale_(max_scale), values_(values), weights_(weights) {}

    void encode(Block& block) {
        for (int g = 0; g < kGroups; ++g) fits_[g] = fit_scale(levels_, group(g));
        const float largest = extreme(fits_, kGroups);
        const auto steps = static_cast<float>(max_scale_);
        for (const float reach : {-steps - 1, -steps, steps, -0.9f * steps, 0.9f * steps})
            attempt(largest / reach);
        for (int i = 0; i < 4 && attempt(refined()); ++i) {
        }
        int integers[256];
        to_integers(found_, 256, integers);
        pack(scale_, scales_, integers, block);
    }

private:
    static constexpr int kSize = 256 / kGroups;

    Group group(int g) const { return {values_ + kSize * g, weights_ + kSize * g, kSize}; }

    // Finds the integer scale of every group for a scale of the block. Keeps the result and returns
    // true if it is the best so far.
    bool attempt(float wanted) {
        const uint16_t half = f32_to_f16(wanted);
        const float scale = f16_to_f32(half);
        int scales[kGroups];
        float found[256], sum = 0;
        for (int g = 0; g < kGroups; ++g)
            sum += encode_group(g, scale, scales[g], found + kSize * g);
        if (has_result_ && !(sum < error_)) return false;
        has_result_ = true;
        error_ = sum;
        scale_ = half;
        std::copy_n(scales, kGroups, scales_);
        std::copy_n(found, 256, found_);
        return true;
    }

    float encode_group(int g, float scale, int& chosen, float* found) const {
        const int near = round_within(fits_[g] * reciprocal(scale), -max_scale_ - 1, max_scale_);
        chosen = near;
        float min_error = level_error(levels_, group(g), scale * static_cast<float>(near), found);
        for (const int other : {near - 1, near + 1}) {
            if (other < -max_scale_ - 1 || other > max_scale_) continue;
            float levels[kSize];
            const float error =
                level_error(levels_, group(g), scale * static_cast<float>(other), levels);
            if (!(error < min_error)) continue;
            min_error = error;
            chosen = other;
            std::copy_n(levels, kSize, found);
        }
        return min_error;
    }

    // Returns the least-squares scale of the block for the best scales and levels.
    float refined() const {
        double product = 0, square = 0;
        for (int i = 0; i < 256; ++i) {
            const double level = double{found_[i]} * scales_[i / kSize];
            product += weights_[i] * level * values_[i];
            square += weights_[i] * level * level;
        }
        return square > 0 ? static_cast<float>(product / square) : 0;
    }

    Levels levels_;
    int max_scale_;
    const float *values_, *weights_;
    float fits_[kGroups];
    bool has_result_ = false;
    float error_ = kInfinity;
    uint16_t scale_ = 0;
    int scales_[kGroups] = {};
    float found_[256] = {};
};

// Blocks of 256 values with integer scales and minimums in [0, max_scale] of kGroups groups.
template <int kGroups, typename Block>
class LineGroups {
public:
    LineGroups(int max_code, int max_scale, const float* values, const float* weights)
        : max_code_(max_code), max_scale_(max_scale), values_(values), weights_(weights) {}

    void encode(Block& block) {
        float max_scale = 0, max_minimum = 0;
        for (int g = 0; g < kGroups; ++g) {
            fits_[g] = fit_line(group(g), max_code_, false);
            max_scale = std::max(max_scale, fits_[g].scale);
            max_minimum = std::max(max_minimum, fits_[g].minimum);
        }
        const auto steps = static_cast<float>(max_scale_);
        // With few steps, a smaller scale that clips the largest group is often better.
        const int n_factors = max_scale_ < 16 ? 4 : 2;
        for (int a = 0; a < n_factors; ++a) {
            for (int b = 0; b < n_factors; ++b) {
                attempt((1 - 0.07f * static_cast<float>(a)) * max_scale / steps,
                        (1 - 0.07f * static_cast<float>(b)) * max_minimum / steps);
            }
        }
        for (int i = 0; i < 4; ++i) {
            const Line line = refined();
            if (!attempt(line.scale, line.minimum)) break;
        }
        int integers[256];
        to_integers(codes_, 256, integers);
        pack(scale_, minimum_, chosen_, integers, block);
    }

private:
    static constexpr int kSize = 256 / kGroups;

    Group group(int g) const { return {values_ + kSize * g, weights_ + kSize * g, kSize}; }

    // As ScaledGroups::attempt().
    bool attempt(float wanted_scale, float wanted_minimum) {
        const uint16_t scale = f32_to_f16(wanted_scale), minimum = f32_to_f16(wanted_minimum);
        const Line unit{f16_to_f32(scale), f16_to_f32(minimum)};
        ScaleMin chosen[kGroups];
        float codes[256], sum = 0;
        for (int g = 0; g < kGroups; ++g)
            sum += encode_group(g, unit, chosen[g], codes + kSize * g);
        if (has_result_ && !(sum < error_)) return false;
        has_result_ = true;
        error_ = sum;
        scale_ = scale;
        minimum_ = minimum;
        std::copy_n(chosen, kGroups, chosen_);
        std::copy_n(codes, 256, codes_);
        return true;
    }

    float encode_group(int g, Line unit, ScaleMin& chosen, float* codes) const {
        const Line fit = fits_[g];
        const int near_scale = round_within(fit.scale * reciprocal(unit.scale), 0, max_scale_);
        const int near_minimum =
            round_within(fit.minimum * reciprocal(unit.minimum), 0, max_scale_);
        chosen = {near_scale, near_minimum};
        std::fill_n(codes, kSize, 0.0f);
        float min_error = kInfinity, tried[kSize];
        for (int s = std::max(near_scale - 1, 0); s <= std::min(near_scale + 1, max_scale_); ++s) {
            for (int m = std::max(near_minimum - 1, 0); m <= std::min(near_minimum + 1, max_scale_);
                 ++m) {
                const Line line{unit.scale * static_cast<float>(s),
                                unit.minimum * static_cast<float>(m)};
                const float error = line_error(group(g), max_code_, line, tried);
                if (!(error < min_error)) continue;
                min_error = error;
                chosen = {s, m};
                std::copy_n(tried, kSize, codes);
            }
        }
        return min_error;
    }

    // Returns the least-squares scale and minimum of the block for the best integers.
    Line refined() const {
        double qq = 0, qm = 0, mm = 0, xq = 0, xm = 0;
        for (int i = 0; i < 256; ++i) {
            const ScaleMin chosen = chosen_[i / kSize];
            const double q = double{codes_[i]} * chosen.scale, m = chosen.minimum;
            const double w = weights_[i], x = values_[i];
            qq += w * q * q;
            qm += w * q * m;
            mm += w * m * m;
            xq += w * x * q;
            xm += w * x * m;
        }
        const double determinant = qq * mm - qm * qm;
        if (!(determinant > 1e-9 * qq * mm))
            return {qq > 0 ? static_cast<float>(xq / qq) : 0, f16_to_f32(minimum_)};
        const double scale = (xq * mm - xm * qm) / determinant;
        const double minimum = (xq * qm - xm * qq) / determinant;
        return {static_cast<float>(std::max(scale, 0.0)),
                static_cast<float>(std::max(minimum, 0.0))};
    }

    int max_code_, max_scale_;
    const float *values_, *weights_;
    Line fits_[kGroups];
    bool has_result_ = false;
    float error_ = kInfinity;
    uint16_t scale_ = 0, minimum_ = 0;
    ScaleMin chosen_[kGroups] = {};
    float codes_[256] = {};
};

// Tries the codes of the scale next to the one that fits and keeps the best.
template <typename ScaleOf>
int best_e2m1(Group group, int near, int first, int last, ScaleOf scale_of, int* nibbles) {
    float min_error = kInfinity, best[32] = {}, found[32];
    int chosen = std::clamp(near, first, last);
    for (int code = std::max(near - 2, first); code <= std::min(near + 2, last); ++code) {
        const float error = level_error(kE2m1, group, scale_of(code), found);
        if (!(error < min_error)) continue;
        min_error = error;
        chosen = code;
        std::copy_n(found, group.count, best);
    }
    for (int i = 0; i < group.count; ++i) nibbles[i] = e2m1_code(round_within(best[i], -12, 12));
    return chosen;
}

void encode_searched(const float* values, const float* weights, BlockMXFP4& block) {
    const Group group{values, weights, 32};
    const float fit = magnitude(fit_scale(kE2m1, group));
    // half_scale() of exponent e is 2^(e - 128).
    const int near = static_cast<int>(__builtin_bit_cast(uint32_t, fit) >> 23 & 255) + 1;
    const auto scale_of = [](int code) {
        BlockMXFP4 one{};
        one.exponent = static_cast<uint8_t>(code);
        return half_scale(one);
    };
    int codes[32];
    // The scales of exponents 0 and 1 are subnormal, and the reciprocal of the first is infinite.
    block.exponent = static_cast<uint8_t>(best_e2m1(group, near, 2, 254, scale_of, codes));
    pack_nibbles<32>(codes, block.nibbles);
}

void encode_searched(const float* values, const float* weights, BlockNVFP4& block) {
    for (int g = 0; g < 4; ++g) {
        const Group group{values + 16 * g, weights + 16 * g, 16};
        const float fit = magnitude(fit_scale(kE2m1, group));
        int near = 0;
        for (int code = 1; code < 127; ++code)
            near = fit >= half_e4m3(static_cast<uint8_t>(code)) ? code : near;
        const auto scale_of = [](int code) { return half_e4m3(static_cast<uint8_t>(code)); };
        int codes[16];
        block.scales[g] = static_cast<uint8_t>(best_e2m1(group, near, 0, 126, scale_of, codes));
        pack_nibbles<16>(codes, block.nibbles + 8 * g);
    }
}

#define PLAIT_SCALED(Block, levels)                                                 \
    void encode_searched(const float* values, const float* weights, Block& block) { \
        encode_scaled(levels, values, weights, block);                              \
    }
PLAIT_SCALED(BlockQ4_0, (Integers{-8, 7}))
PLAIT_SCALED(BlockQ5_0, (Integers{-16, 15}))
PLAIT_SCALED(BlockQ8_0, kAny8)
PLAIT_SCALED(BlockIQ4_NL, kIq4Table)
PLAIT_SCALED(BlockQ1_0, kSigns)
PLAIT_SCALED(BlockQ2_0, (Integers{-1, 2}))
PLAIT_SCALED(BlockTQ1_0, (Integers{-1, 1}))
PLAIT_SCALED(BlockTQ2_0, (Integers{-1, 2}))
#undef PLAIT_SCALED

void encode_searched(const float* values, const float* weights, BlockQ4_1& block) {
    encode_line(15, values, weights, block);
}
void encode_searched(const float* values, const float* weights, BlockQ5_1& block) {
    encode_line(31, values, weights, block);
}
void encode_searched(const float* values, const float* weights, BlockQ2_K& block) {
    LineGroups<16, BlockQ2_K>(3, 15, values, weights).encode(block);
}
void encode_searched(const float* values, const float* weights, BlockQ4_K& block) {
    LineGroups<8, BlockQ4_K>(15, 63, values, weights).encode(block);
}
void encode_searched(const float* values, const float* weights, BlockQ5_K& block) {
    LineGroups<8, BlockQ5_K>(31, 63, values, weights).encode(block);
}
void encode_searched(const float* values, const float* weights, BlockQ3_K& block) {
    ScaledGroups<16, BlockQ3_K, Integers>({-4, 3}, 31, values, weights).encode(block);
}
void encode_searched(const float* values, const float* weights, BlockQ6_K& block) {
    ScaledGroups<16, BlockQ6_K, Integers>({-32, 31}, 127, values, weights).encode(block);
}
void encode_searched(const float* values, const float* weights, BlockIQ4_XS& block) {
    ScaledGroups<8, BlockIQ4_XS, Table<16>>(kIq4Table, 31, values, weights).encode(block);
}

template <typename Block>
void search_rows(const float* source, const float* weights, uint64_t row, uint64_t n_rows,
                 std::byte* target) {
    for (uint64_t i = 0; i < n_rows; ++i) {
        for (uint64_t first = 0; first < row; first += Block::kElements) {
            Block block{};
            encode_searched(source + i * row + first, weights + first, block);
            std::memcpy(target, &block, sizeof(block));
            target += sizeof(block);
        }
    }
}

using Searcher = void (*)(const float*, const float*, uint64_t, uint64_t, std::byte*);

Searcher searcher_of(DType dtype) {
    switch (dtype) {
    case DType::q8_0: return search_rows<BlockQ8_0>;
    case DType::q4_0: return search_rows<BlockQ4_0>;
    case DType::q4_1: return search_rows<BlockQ4_1>;
    case DType::q5_0: return search_rows<BlockQ5_0>;
    case DType::q5_1: return search_rows<BlockQ5_1>;
    case DType::q2_k: return search_rows<BlockQ2_K>;
    case DType::q3_k: return search_rows<BlockQ3_K>;
    case DType::q4_k: return search_rows<BlockQ4_K>;
    case DType::q5_k: return search_rows<BlockQ5_K>;
    case DType::q6_k: return search_rows<BlockQ6_K>;
    case DType::iq4_nl: return search_rows<BlockIQ4_NL>;
    case DType::iq4_xs: return search_rows<BlockIQ4_XS>;
    case DType::mxfp4: return search_rows<BlockMXFP4>;
    case DType::iq1_s: return search_rows<BlockIQ1_S>;
    case DType::iq1_m: return search_rows<BlockIQ1_M>;
    case DType::iq2_xxs: return search_rows<BlockIQ2_XXS>;
    case DType::iq2_xs: return search_rows<BlockIQ2_XS>;
    case DType::iq2_s: return search_rows<BlockIQ2_S>;
    case DType::iq3_xxs: return search_rows<BlockIQ3_XXS>;
    case DType::iq3_s: return search_rows<BlockIQ3_S>;
    case DType::tq1_0: return search_rows<BlockTQ1_0>;
    case DType::tq2_0: return search_rows<BlockTQ2_0>;
    case DType::nvfp4: return search_rows<BlockNVFP4>;
    case DType::q1_0: return search_rows<BlockQ1_0>;
    case DType::q2_0: return search_rows<BlockQ2_0>;
    default: return nullptr;
    }
}

// Returns the weights with a floor. Where they are 0, the codes would otherwise be arbitrary, which
// harms inputs that are not like those the weights were measured with.
std::vector<float> floored(const float* weights, uint64_t row) {
    if (!weights) return std::vector<float>(row, 1.0f);
    double sum = 0;
    for (uint64_t i = 0; i < row; ++i) sum += weights[i];
    const auto mean = static_cast<float>(sum / static_cast<double>(std::max<uint64_t>(row, 1)));
    if (!(mean > 0)) return std::vector<float>(row, 1.0f);
    std::vector<float> result(row);
    // The scale of the weights is arbitrary; a mean of 1 keeps sums in the range of floats.
    for (uint64_t i = 0; i < row; ++i) result[i] = std::max(weights[i] / mean, 1e-5f);
    return result;
}

}  // namespace

bool can_search(DType dtype) { return searcher_of(dtype) != nullptr; }

void quantize_search(DType dtype, const float* source, const float* weights, uint64_t row,
                     uint64_t n_rows, std::byte* target) {
    const Searcher searcher = searcher_of(dtype);
    const DTypeInfo& type = info(dtype);
    if (!searcher)
        throw UnsupportedError(text("quantize: ", type.name, " can be read but not written"));
    if (row % type.block_elements != 0)
        throw InvalidArgument(text("quantize: ", type.name, " holds blocks of ",
                                   type.block_elements, " values, got rows of ", row));
    searcher(source, floored(weights, row).data(), row, n_rows, target);
}

}  // namespace plait
