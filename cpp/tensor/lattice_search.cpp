#include "tensor/lattice_search.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "tensor/blocks/fit.h"
#include "tensor/blocks/pack.h"
#include "tensor/half.h"

namespace plait {
namespace {

constexpr int kOctet = 8;  // values that share signs or a shift
constexpr int kOctets = 256 / kOctet;
constexpr int kMaxHalf = 81;  // combinations of levels in half of a point: 3^4 or 8^2

// The points of a lattice. Each has two halves, and the digits of a half's number are the levels of
// its values. The error of a point is the sum of the errors of its halves, so a point is tried with
// one addition, and all points with the same first half are skipped if its error is already too
// large.
class Lattice {
public:
    template <typename Word, size_t kPoints>
    Lattice(const Grid<Word, kPoints>& grid, int zero) : dims_(sizeof(Word)) {
        const std::span bytes(reinterpret_cast<const uint8_t*>(grid.words), sizeof(grid.words));
        std::vector<uint8_t> found(bytes.begin(), bytes.end());
        std::ranges::sort(found);
        found.erase(std::ranges::unique(found).begin(), found.end());
        for (const uint8_t byte : found) levels_.push_back(static_cast<float>(byte - zero));
        for (int d = 0; d < dims_ / 2; ++d) n_halves_ *= static_cast<int>(found.size());
        const auto number = [&](size_t first) {  // of the half whose bytes begin at `first`
            size_t n = 0;
            for (size_t i = sizeof(Word) / 2; i-- > 0;)
                n = n * found.size() +
                    static_cast<size_t>(std::ranges::lower_bound(found, bytes[first + i]) -
                                        found.begin());
            return n;
        };
        for (size_t i = 0; i < kPoints; ++i)
            with_first_[number(i * sizeof(Word))].push_back(
                {static_cast<int>(i),
                 static_cast<int>(number(i * sizeof(Word) + sizeof(Word) / 2))});
        for (const uint8_t byte : bytes) values_.push_back(static_cast<float>(byte - zero));
    }

    int dims() const { return dims_; }
    float reach() const { return levels_.back(); }
    const float* operator[](int point) const { return values_.data() + point * dims_; }

    // Finds the point p for which the sum of weights * (values - scale * (p + shift))^2 is minimal,
    // and returns this sum.
    float nearest(const float* values, const float* weights, float scale, float shift,
                  int& point) const {
        float errors[2][kMaxHalf];
        for (int half = 0; half < 2; ++half) {
            const int first = half * dims_ / 2;
            int size = 1;
            errors[half][0] = 0;
            for (int d = first; d < first + dims_ / 2; ++d) {
                // From the last level down: the first one overwrites its own source.
                for (size_t l = levels_.size(); l-- > 0;) {
                    const float rest = values[d] - scale * (levels_[l] + shift);
                    const float error = weights[d] * rest * rest;
                    for (int i = 0; i < size; ++i)
                        errors[half][static_cast<int>(l) * size + i] = errors[half][i] + error;
                }
                size *= static_cast<int>(levels_.size());
            }
        }
        const auto start = std::min_element(errors[0], errors[0] + n_halves_) - errors[0];
        float min_error = kInfinity;
        point = 0;
        const auto try_all = [&](int first) {
            for (const Second& second : with_first_[static_cast<size_t>(first)]) {
                const float error = errors[0][first] + errors[1][second.half];
                if (!(error < min_error)) continue;
                min_error = error;
                point = second.point;
            }
        };
        try_all(static_cast<int>(start));
        for (int first = 0; first < n_halves_; ++first)
            if (errors[0][first] < min_error) try_all(first);
        return min_error;
    }

private:
    struct Second {
        int point, half;  // the point, and the number of its second half
    };

    int dims_, n_halves_ = 1;
    std::vector<float> levels_;
    std::vector<float> values_;                 // of all points
    std::vector<Second> with_first_[kMaxHalf];  // the points with each first half
};

enum class Signs { free, even, shift_per_octet, shift_per_group };

// What the types have in common: scale * unit(code) multiplies the lattice.
struct Form {
    const Lattice& points;
    int group;  // values that share a scale code
    int n_codes;
    float unit_0, unit_step;
    Signs signs;
    // Scales to start from, as parts of the one that gives the largest value the largest level.
    float first_reach, reach_step;

    float unit(int code) const { return unit_0 + unit_step * static_cast<float>(code); }
    bool shifts() const {
        return signs == Signs::shift_per_octet || signs == Signs::shift_per_group;
    }
};

// The points of a group: one or two per octet, with the signs of the values as bits, or with 1 for a
// shift down.
struct Chosen {
    int points[8];
    uint8_t signs[4];
    float levels[32];  // with signs and shifts
};

class LatticeSearch {
public:
    LatticeSearch(const Form& form, const float* values, const float* weights)
        : form_(form), values_(values), weights_(weights), n_groups_(256 / form.group) {
        for (int g = 0; g < n_groups_; ++g) fits_[g] = fit(g);
        const float largest = *std::max_element(fits_, fits_ + n_groups_);
        attempt(largest / form.unit(form.n_codes - 1));
        for (int i = 0; i < 2 && attempt(refined()); ++i) {
        }
    }

    uint16_t scale() const { return scale_; }
    int code(int g) const { return codes_[g]; }
    int point(int i) const {  // of 32 or 64
        const int per_group = form_.group / form_.points.dims();
        return chosen_[i / per_group].points[i % per_group];
    }
    uint8_t signs(int octet) const {
        const int per_group = form_.group / kOctet;
        return chosen_[octet / per_group].signs[octet % per_group];
    }
    // Seven signs of each of the four octets from `octet` on.
    uint32_t seven_signs(int octet) const {
        uint32_t bits = 0;
        for (int i = 0; i < 4; ++i)
            bits |= static_cast<uint32_t>(signs(octet + i) & 127) << (7 * i);
        return bits;
    }

private:
    // Chooses the points of a group for a scale and returns the error.
    float choose(int g, float scale, Chosen& chosen) const {
        if (form_.signs != Signs::shift_per_group) return choose(g, scale, 0, chosen);
        Chosen other;
        const float up = choose(g, scale, 1, chosen), down = choose(g, scale, -1, other);
        if (!(down < up)) return up;
        chosen = other;
        return down;
    }

    float choose(int g, float scale, int shift, Chosen& chosen) const {
        float error = 0;
        for (int o = 0; o < form_.group / kOctet; ++o) {
            const int at = g * form_.group + o * kOctet;
            if (!form_.shifts()) {
                error += choose_signed(at, scale, o, chosen);
            } else if (shift != 0) {
                error += choose_shifted(at, scale, shift, o, chosen);
            } else {
                Chosen other = chosen;
                const float up = choose_shifted(at, scale, 1, o, chosen);
                const float down = choose_shifted(at, scale, -1, o, other);
                if (down < up) chosen = other;
                error += std::min(up, down);
            }
        }
        return error;
    }

    float choose_shifted(int at, float scale, int shift, int o, Chosen& chosen) const {
        const auto by = static_cast<float>(shift);
        const float error =
            form_.points.nearest(values_ + at, weights_ + at, scale, by, chosen.points[o]);
        chosen.signs[o] = shift < 0;
        for (int i = 0; i < kOctet; ++i)
            chosen.levels[kOctet * o + i] = form_.points[chosen.points[o]][i] + by;
        return error;
    }

    float choose_signed(int at, float scale, int o, Chosen& chosen) const {
        float sizes[kOctet];
        unsigned signs = 0;
        int cheapest = 0;  // to give the wrong sign
        for (int i = 0; i < kOctet; ++i) {
            const float value = values_[at + i];
            sizes[i] = magnitude(value);
            signs |= static_cast<unsigned>(value < 0) << i;
            const float cost = weights_[at + i] * sizes[i] * sizes[i];
            if (cost < weights_[at + cheapest] * sizes[cheapest] * sizes[cheapest]) cheapest = i;
        }
        if (form_.signs == Signs::even && std::popcount(signs) % 2 != 0) {
            signs ^= 1u << cheapest;
            sizes[cheapest] = -sizes[cheapest];
        }
        chosen.signs[o] = static_cast<uint8_t>(signs);
        const int dims = form_.points.dims();
        float error = 0;
        for (int first = 0; first < kOctet; first += dims) {
            int& point = chosen.points[(o * kOctet + first) / dims];
            error += form_.points.nearest(sizes + first, weights_ + at + first, scale, 0, point);
            for (int i = first; i < first + dims; ++i) {
                const float level = form_.points[point][i - first];
                chosen.levels[kOctet * o + i] = (signs >> i & 1) != 0 ? -level : level;
            }
        }
        return error;
    }

    // Returns the best scale of a group if every number could be one.
    float fit(int g) const {
        const float largest = magnitude(extreme(values_ + g * form_.group, form_.group));
        if (!(largest > kSmallestFit)) return 0;
        Chosen chosen;
        float min_error = kInfinity, best = 0;
        const auto attempt = [&](float scale) {
            const float error = choose(g, scale, chosen);
            if (!(error < min_error)) return false;
            min_error = error;
            best = scale;
            return true;
        };
        for (int i = 0; i < 5; ++i) {
            const float part = form_.first_reach - form_.reach_step * static_cast<float>(i);
            if (!attempt(part * largest / form_.points.reach())) continue;
            double product = 0, square = 0;
            add_sums(g, 1, chosen, product, square);
            if (square > 0 && product > 0) attempt(static_cast<float>(product / square));
        }
        return best;
    }

    void add_sums(int g, float unit, const Chosen& chosen, double& product, double& square) const {
        for (int i = 0; i < form_.group; ++i) {
            const int at = g * form_.group + i;
            const double level = double{unit} * chosen.levels[i];
            product += weights_[at] * level * values_[at];
            square += weights_[at] * level * level;
        }
    }

    // Finds the codes and points of all groups for a scale of the block. Keeps the result and
    // returns true if it is the best so far.
    bool attempt(float wanted) {
        const uint16_t half = f32_to_f16(wanted);
        const float scale = f16_to_f32(half);
        int codes[16];
        Chosen chosen[16];
        float error = 0;
        for (int g = 0; g < n_groups_; ++g) error += encode_group(g, scale, codes[g], chosen[g]);
        if (!first_ && !(error < error_)) return false;
        first_ = false;
        error_ = error;
        scale_ = half;
        std::copy_n(codes, n_groups_, codes_);
        std::copy_n(chosen, n_groups_, chosen_);
        return true;
    }

    float encode_group(int g, float scale, int& code, Chosen& chosen) const {
        const float steps =
            (fits_[g] * reciprocal(scale) - form_.unit_0) * reciprocal(form_.unit_step);
        const int near = round_within(steps, 0, form_.n_codes - 1);
        float min_error = kInfinity;
        code = near;
        for (int c = std::max(near - 1, 0); c <= std::min(near + 1, form_.n_codes - 1); ++c) {
            Chosen tried;
            const float error = choose(g, scale * form_.unit(c), tried);
            if (c > std::max(near - 1, 0) && !(error < min_error)) continue;
            min_error = error;
            code = c;
            chosen = tried;
        }
        return min_error;
    }

    // Returns the least-squares scale of the block for the best codes and points.
    float refined() const {
        double product = 0, square = 0;
        for (int g = 0; g < n_groups_; ++g)
            add_sums(g, form_.unit(codes_[g]), chosen_[g], product, square);
        return square > 0 ? static_cast<float>(product / square) : 0;
    }

    const Form& form_;
    const float *values_, *weights_;
    int n_groups_;
    float fits_[16] = {};
    bool first_ = true;
    float error_ = kInfinity;
    uint16_t scale_ = 0;
    int codes_[16] = {};
    Chosen chosen_[16] = {};
};

const Form& form_iq1_s() {
    static const Lattice points(kGridIQ1_S, kExpandedOffset);
    static const Form form{points, 32, 8, 0.125f, 0.25f, Signs::shift_per_group, 0.8f, 0.11f};
    return form;
}
const Form& form_iq1_m() {
    static const Lattice points(kGridIQ1_S, kExpandedOffset);
    static const Form form{points, 16, 8, 0.125f, 0.25f, Signs::shift_per_octet, 0.85f, 0.11f};
    return form;
}
const Form& form_iq2_xxs() {
    static const Lattice points(kGridIQ2_XXS, 0);
    static const Form form{points, 32, 16, 0.125f, 0.25f, Signs::even, 1.1f, 0.13f};
    return form;
}
const Form& form_iq2_xs() {
    static const Lattice points(kGridIQ2_XS, 0);
    static const Form form{points, 16, 16, 0.125f, 0.25f, Signs::even, 1.15f, 0.12f};
    return form;
}
const Form& form_iq2_s() {
    static const Lattice points(kGridIQ2_S, 0);
    static const Form form{points, 16, 16, 0.125f, 0.25f, Signs::free, 1.15f, 0.12f};
    return form;
}
const Form& form_iq3_xxs() {
    static const Lattice points(kGridIQ3_XXS, 0);
    static const Form form{points, 32, 16, 0.25f, 0.5f, Signs::even, 1.15f, 0.09f};
    return form;
}
const Form& form_iq3_s() {
    static const Lattice points(kGridIQ3_S, 0);
    static const Form form{points, 32, 16, 1.0f, 2.0f, Signs::free, 1.15f, 0.09f};
    return form;
}

uint8_t nibbles(int low, int high) { return static_cast<uint8_t>(low | high << 4); }

}  // namespace

void encode_searched(const float* values, const float* weights, BlockIQ1_S& block) {
    const LatticeSearch found(form_iq1_s(), values, weights);
    block = {};
    block.scale = found.scale();
    for (int g = 0; g < 8; ++g) {
        int high = found.code(g) << 12 | found.signs(4 * g) << 15;
        for (int i = 0; i < 4; ++i) {
            const int point = found.point(4 * g + i);
            block.points[4 * g + i] = static_cast<uint8_t>(point);
            high |= point >> 8 << (3 * i);
        }
        block.high[g] = static_cast<uint16_t>(high);
    }
}

void encode_searched(const float* values, const float* weights, BlockIQ1_M& block) {
    const LatticeSearch found(form_iq1_m(), values, weights);
    block = {};
    for (int i = 0; i < 4; ++i)
        block.scales[i] = static_cast<uint16_t>((found.scale() >> (4 * i) & 15) << 12);
    for (int g = 0; g < 16; ++g) {
        block.scales[g / 4] =
            static_cast<uint16_t>(block.scales[g / 4] | found.code(g) << (3 * (g % 4)));
        for (int i = 0; i < 2; ++i) {
            const int point = found.point(2 * g + i);
            block.points[2 * g + i] = static_cast<uint8_t>(point);
            put_bits(block.high[g], point >> 8 | found.signs(2 * g + i) << 3, 4 * i);
        }
    }
}

void encode_searched(const float* values, const float* weights, BlockIQ2_XXS& block) {
    const LatticeSearch found(form_iq2_xxs(), values, weights);
    block.scale = found.scale();
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 4; ++i)
            block.groups[g].points[i] = static_cast<uint8_t>(found.point(4 * g + i));
        block.groups[g].signs = found.seven_signs(4 * g) | static_cast<uint32_t>(found.code(g))
                                                               << 28;
    }
}

void encode_searched(const float* values, const float* weights, BlockIQ2_XS& block) {
    const LatticeSearch found(form_iq2_xs(), values, weights);
    block.scale = found.scale();
    for (int i = 0; i < kOctets; ++i)
        block.points[i] = static_cast<uint16_t>(found.point(i) | (found.signs(i) & 127) << 9);
    for (int i = 0; i < 8; ++i) block.scales[i] = nibbles(found.code(2 * i), found.code(2 * i + 1));
}

void encode_searched(const float* values, const float* weights, BlockIQ2_S& block) {
    const LatticeSearch found(form_iq2_s(), values, weights);
    block = {};
    block.scale = found.scale();
    for (int i = 0; i < kOctets; ++i) {
        block.points[i] = static_cast<uint8_t>(found.point(i));
        block.signs[i] = found.signs(i);
        put_bits(block.high[i / 4], found.point(i) >> 8, 2 * (i % 4));
    }
    for (int i = 0; i < 8; ++i) block.scales[i] = nibbles(found.code(2 * i), found.code(2 * i + 1));
}

void encode_searched(const float* values, const float* weights, BlockIQ3_XXS& block) {
    const LatticeSearch found(form_iq3_xxs(), values, weights);
    block.scale = found.scale();
    for (int i = 0; i < 64; ++i) block.points[i] = static_cast<uint8_t>(found.point(i));
    for (int g = 0; g < 8; ++g)
        block.signs[g] = found.seven_signs(4 * g) | static_cast<uint32_t>(found.code(g)) << 28;
}

void encode_searched(const float* values, const float* weights, BlockIQ3_S& block) {
    const LatticeSearch found(form_iq3_s(), values, weights);
    block = {};
    block.scale = found.scale();
    for (int i = 0; i < 64; ++i) {
        block.points[i] = static_cast<uint8_t>(found.point(i));
        put_bits(block.high[i / 8], found.point(i) >> 8, i % 8);
    }
    for (int i = 0; i < kOctets; ++i) block.signs[i] = found.signs(i);
    for (int i = 0; i < 4; ++i) block.scales[i] = nibbles(found.code(2 * i), found.code(2 * i + 1));
}

}  // namespace plait
