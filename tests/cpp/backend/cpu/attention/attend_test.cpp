// Compares attention with plain double arithmetic, and with itself: other rows for the same keys,
// other sequences in the batch, other tiles and other cuts of the work must give the same bits.
#include "backend/cpu/kernels/attention/attend.h"

#include <numeric>

#include "backend/cpu/kernel_harness.h"
#include "tensor/convert.h"
#include "tensor/run.h"

namespace plait::cpu {
namespace {

struct Shape {
    int32_t heads = 4;
    int32_t kv_heads = 2;
    int32_t key_dim = 64;
    int32_t value_dim = 64;
    DType key_type = DType::f16;
    DType value_type = DType::f16;
    float softcap = 0.0f;
    bool sinks = false;
    bool flash = true;
    bool values_in_keys = false;  // values are value_dim elements of the key; value_type is unused
    PositionBias bias = PositionBias::none;
    float max_bias = 8.0f;
    int32_t buckets = 32;
    int32_t max_distance = 128;
    bool both_directions = false;
    int32_t tile_queries = kTileQueries;
    int32_t threads = 1;
};

// The operands that all sequences share.
struct Weights {
    std::vector<float> sinks;  // [heads]
    std::vector<float> bias;   // [buckets, heads]
};

// A sequence, independent of the cache layout: keys and values with ordinals, and queries with the
// keys that they see.
struct Sequence {
    std::vector<int32_t> ordinals;                 // by key
    std::vector<std::vector<float>> keys, values;  // by key: [kv_heads * dim]
    std::vector<std::vector<float>> queries;       // by token: [heads * key_dim]
    std::vector<int32_t> first, last;              // by token
    std::vector<int32_t> positions;                // by token
    std::vector<int32_t> key_positions;            // by key
};

// The places of keys in a cache: the row of each, and the boundaries of runs.
struct Layout {
    std::vector<std::vector<int32_t>> row;  // by sequence, key
    std::vector<std::vector<bool>> cut;     // a run ends before this key
    int32_t rows = 0;
};

int64_t padded(DType dtype, int64_t dim) {
    const int64_t block = info(dtype).block_elements;
    return (dim + block - 1) / block * block;
}

std::vector<float> random_vector(int64_t n, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& x : values) x = normal(random);
    return values;
}

Weights random_weights(const Shape& shape, std::mt19937& random) {
    return {random_vector(shape.heads, random), random_vector(shape.buckets * shape.heads, random)};
}

Sequence random_sequence(const Shape& shape, int32_t n_keys, int32_t n_tokens,
                         std::mt19937& random) {
    Sequence s;
    int32_t ordinal = static_cast<int32_t>(random() % 100);
    int32_t position = static_cast<int32_t>(random() % 100);
    for (int32_t k = 0; k < n_keys; ++k) {
        s.ordinals.push_back(ordinal);
        ordinal += random() % 20 == 0 ? 1 + static_cast<int32_t>(random() % 90) : 1;
        if (random() % 200 == 0) ordinal = static_cast<int32_t>(random() % 50);  // decreases
        s.key_positions.push_back(position);
        position += random() % 5 == 0 ? static_cast<int32_t>(random() % 9) : 1;
        s.keys.push_back(random_vector(shape.kv_heads * shape.key_dim, random));
        s.values.push_back(random_vector(shape.kv_heads * shape.value_dim, random));
    }
    for (int32_t t = 0; t < n_tokens; ++t) {
        s.queries.push_back(random_vector(shape.heads * shape.key_dim, random));
        // Most intervals are causal or windows; some are arbitrary, some are empty.
        int32_t last = std::max(0, n_keys - n_tokens + t + 1);
        int32_t first = random() % 3 == 0 ? std::max(0, last - 40) : 0;
        if (random() % 7 == 0) {
            first = static_cast<int32_t>(random() % (n_keys + 1));
            last = static_cast<int32_t>(random() % (n_keys + 1));
        }
        s.first.push_back(first);
        s.last.push_back(last);
        s.positions.push_back(position - static_cast<int32_t>(random() % 60));
    }
    return s;
}

// Keys in random rows or, if `scattered` is false, in consecutive rows.
Layout make_layout(const std::vector<Sequence>& sequences, bool scattered, std::mt19937& random) {
    Layout layout;
    for (const Sequence& s : sequences) layout.rows += static_cast<int32_t>(s.keys.size());
    layout.rows += 5;
    std::vector<int32_t> free(layout.rows);
    std::iota(free.begin(), free.end(), 0);
    if (scattered) {
        for (int32_t i = 0; i + 8 < layout.rows; i += 8)
            if (random() % 2) std::swap_ranges(&free[i], &free[i] + 4, &free[i] + 4);
        for (int i = 0; i < 5; ++i)
            std::swap(free[random() % free.size()], free[random() % free.size()]);
    }
    size_t at = 0;
    for (const Sequence& s : sequences) {
        layout.row.emplace_back();
        layout.cut.emplace_back();
        for (size_t k = 0; k < s.keys.size(); ++k) {
            layout.row.back().push_back(free[at++]);
            layout.cut.back().push_back(scattered && random() % 11 == 0);
        }
    }
    return layout;
}

// The operands of a step in memory, as the kernels read them. Rows without a key are filled with
// NaN.
class Operands {
public:
    Operands(const Shape& shape, const std::vector<Sequence>& sequences, const Layout& layout)
        : shape_(shape),
          key_cache_(cache(shape.key_type, shape.key_dim)),
          value_cache_(shape.values_in_keys ? key_cache_
                                            : cache(shape.value_type, shape.value_dim)),
          keys_(layout.rows * key_cache_.row_bytes, std::byte{0xff}),
          values_(layout.rows * value_cache_.row_bytes, std::byte{0xff}) {
        for (size_t s = 0; s < sequences.size(); ++s) {
            add_keys(sequences[s], layout.row[s], layout.cut[s]);
            add_queries(sequences[s]);
        }
        y.assign(static_cast<size_t>(n_tokens() * shape.heads * shape.value_dim), 42.0f);
    }

    int64_t n_tokens() const { return token_begin_.back(); }

    AttendArgs args(const Weights& weights) const {
        AttendArgs args{};
        args.key_cache = key_cache_;
        args.value_cache = value_cache_;
        args.q = ref_to(q_);
        args.y = ref_to(y);
        args.keys = ref_to(keys_);
        args.values = shape_.values_in_keys ? args.keys : ref_to(values_);
        args.values_in_keys = shape_.values_in_keys;
        args.token_begin = ref_to(token_begin_);
        args.runs = ref_to(runs_);
        args.run_begin = ref_to(run_begin_);
        args.first = ref_to(first_);
        args.last = ref_to(last_);
        args.has_sinks = shape_.sinks;
        if (shape_.sinks) args.sinks = ref_to(weights.sinks);
        args.bias_kind = shape_.bias;
        args.max_bias = shape_.max_bias;
        args.buckets = shape_.buckets;
        args.max_distance = shape_.max_distance;
        args.both_directions = shape_.both_directions;
        args.position_stride = 2;
        args.positions = ref_to(positions_);
        args.key_positions = ref_to(key_positions_);
        args.key_begin = ref_to(key_begin_);
        args.bias = ref_to(weights.bias);
        args.heads = shape_.heads;
        args.kv_heads = shape_.kv_heads;
        args.key_dim = shape_.key_dim;
        args.value_dim = shape_.value_dim;
        args.tile_queries = shape_.tile_queries;
        args.threads = shape_.threads;
        args.softcap = shape_.softcap;
        return args;
    }

    std::vector<float> y;

private:
    CacheLayout cache(DType dtype, int32_t dim) const {
        CacheLayout c{};
        c.dtype = dtype;
        c.head_elements = padded(dtype, dim);
        c.head_bytes = static_cast<int64_t>(row_bytes(dtype, c.head_elements));
        c.row_bytes = c.head_bytes * shape_.kv_heads;
        return c;
    }

    void put(const CacheLayout& c, int32_t dim, const std::vector<float>& row, std::byte* to) {
        std::vector<float> whole(c.head_elements * shape_.kv_heads, 0.0f);
        for (int32_t h = 0; h < shape_.kv_heads; ++h)
            std::copy_n(row.data() + h * dim, dim, whole.data() + h * c.head_elements);
        quantize(c.dtype, whole.data(), to, whole.size());
    }

    void add_keys(const Sequence& sequence, const std::vector<int32_t>& rows,
                  const std::vector<bool>& cut) {
        for (size_t k = 0; k < sequence.keys.size(); ++k) {
            const int32_t row = rows[k];
            put(key_cache_, shape_.key_dim, sequence.keys[k],
                keys_.data() + row * key_cache_.row_bytes);
            if (!shape_.values_in_keys)
                put(value_cache_, shape_.value_dim, sequence.values[k],
                    values_.data() + row * value_cache_.row_bytes);
            const bool follows = k > 0 && !cut[k] && row == rows[k - 1] + 1 &&
                                 sequence.ordinals[k] == sequence.ordinals[k - 1] + 1;
            if (follows)
                ++runs_.back().count;
            else
                runs_.push_back({row, 1, static_cast<int32_t>(k), sequence.ordinals[k]});
        }
        run_begin_.push_back(static_cast<int32_t>(runs_.size()));
        key_positions_.insert(key_positions_.end(), sequence.key_positions.begin(),
                              sequence.key_positions.end());
        key_begin_.push_back(static_cast<int32_t>(key_positions_.size()));
    }

    void add_queries(const Sequence& sequence) {
        for (const auto& query : sequence.queries) q_.insert(q_.end(), query.begin(), query.end());
        token_begin_.push_back(token_begin_.back() + static_cast<int32_t>(sequence.queries.size()));
        first_.insert(first_.end(), sequence.first.begin(), sequence.first.end());
        last_.insert(last_.end(), sequence.last.begin(), sequence.last.end());
        for (const int32_t position : sequence.positions)
            positions_.insert(positions_.end(), {position, -1});  // two axes
    }

    const Shape& shape_;
    CacheLayout key_cache_, value_cache_;
    std::vector<std::byte> keys_, values_;
    std::vector<plait::Run> runs_;
    std::vector<int32_t> run_begin_ = {0}, token_begin_ = {0}, key_begin_ = {0};
    std::vector<int32_t> first_, last_, positions_, key_positions_;
    std::vector<float> q_;
};

class AttendTest : public KernelTest {
protected:
    // Returns [sequence][token][heads * value_dim].
    std::vector<std::vector<std::vector<float>>> attend(const Shape& shape,
                                                        const std::vector<Sequence>& sequences,
                                                        const Layout& layout,
                                                        const Weights& weights,
                                                        Cut cut = Cut::whole) {
        Operands operands(shape, sequences, layout);
        AttendArgs args = operands.args(weights);
        args.scale = scale(shape);
        Frame frame = tokens(operands.n_tokens());
        frame.n_sequences = static_cast<int32_t>(sequences.size());
        const auto scratch = static_cast<size_t>(attend_scratch(args).end) * sizeof(float);
        Floats splits(0);
        was_split = false;
        if (shape.flash && shape.threads > 1) {
            args.splits_floats = 200 * split_floats(shape.heads, shape.value_dim);
            splits = Floats(std::vector<float>(static_cast<size_t>(args.splits_floats) + 1, kNan));
            args.splits = ref_to(splits);
            was_split = kernels().attend_splits.tasks(&args, frame) > 0;
            run_kernel(kernels().attend_splits, args, frame, scratch, cut);
            EXPECT_TRUE(std::isnan(splits[splits.size() - 1])) << "written past the splits";
        }
        run_kernel(shape.flash ? kernels().attend : kernels().attend_scores, args, frame, scratch,
                   cut);

        std::vector<std::vector<std::vector<float>>> result;
        const std::vector<float>& y = operands.y;
        const int64_t width = shape.heads * shape.value_dim;
        for (size_t s = 0, t = 0; s < sequences.size(); ++s) {
            result.emplace_back();
            for (size_t i = 0; i < sequences[s].queries.size(); ++i, ++t)
                result.back().emplace_back(y.begin() + t * width, y.begin() + (t + 1) * width);
        }
        return result;
    }

    bool was_split = false;  // true if the last attend() also split the keys

    static float scale(const Shape& shape) {
        return 1.5f / std::sqrt(static_cast<float>(shape.key_dim));
    }

    // The bucket of a key, as in the code of T5's authors: `relative` is negative for keys before
    // the query.
    static int32_t bucket_of(const Shape& shape, int32_t relative) {
        const int32_t buckets = shape.both_directions ? shape.buckets / 2 : shape.buckets;
        const int32_t offset = shape.both_directions && relative > 0 ? buckets : 0;
        const int32_t n = shape.both_directions ? std::abs(relative) : std::max(-relative, 0);
        const int32_t exact = buckets / 2;
        if (n < exact) return offset + n;
        const float turns = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                            static_cast<float>(std::log(shape.max_distance / double(exact)));
        const auto large =
            exact + static_cast<int32_t>(turns * static_cast<float>(buckets - exact));
        return offset + std::min(large, buckets - 1);
    }

    static double bias_of(const Shape& shape, const Weights& weights, int32_t head,
                          int32_t relative) {
        if (shape.bias == PositionBias::none) return 0.0;
        if (shape.bias == PositionBias::buckets)
            return weights.bias[bucket_of(shape, relative) * shape.heads + head];
        const int32_t m = 1 << static_cast<int32_t>(std::floor(std::log2(shape.heads)));
        const double slope =
            head < m ? std::pow(std::pow(2.0, -shape.max_bias / m), head + 1)
                     : std::pow(std::pow(2.0, -shape.max_bias / 2 / m), 2 * (head - m) + 1);
        return -slope * std::abs(relative);
    }

    // The expected result of one token, with keys and values as stored in the cache.
    static std::vector<double> reference(const Shape& shape, const Sequence& s, size_t token,
                                         const Weights& weights) {
        const auto stored = [&](DType dtype, const std::vector<float>& row, int32_t h,
                                int32_t dim) {
            std::vector<float> head(padded(dtype, dim), 0.0f);
            std::copy_n(row.data() + h * dim, dim, head.data());
            std::vector<std::byte> bytes(row_bytes(dtype, head.size()));
            quantize(dtype, head.data(), bytes.data(), head.size());
            dequantize(dtype, bytes.data(), head.data(), head.size());
            return head;
        };
        std::vector<double> y(shape.heads * shape.value_dim, 0.0);
        for (int32_t h = 0; h < shape.heads; ++h) {
            const int32_t kv = h / (shape.heads / shape.kv_heads);
            std::vector<double> scores;
            double most = shape.sinks ? weights.sinks[h] : -std::numeric_limits<double>::infinity();
            for (int32_t k = s.first[token]; k < s.last[token]; ++k) {
                const std::vector<float> key = stored(shape.key_type, s.keys[k], kv, shape.key_dim);
                double dot = 0;
                for (int32_t d = 0; d < shape.key_dim; ++d)
                    dot += double(s.queries[token][h * shape.key_dim + d]) * key[d];
                dot *= scale(shape);
                if (shape.softcap != 0) dot = shape.softcap * std::tanh(dot / shape.softcap);
                dot += bias_of(shape, weights, h, s.key_positions[k] - s.positions[token]);
                scores.push_back(dot);
                most = std::max(most, dot);
            }
            if (scores.empty()) continue;
            double all = shape.sinks ? std::exp(weights.sinks[h] - most) : 0.0;
            for (const double score : scores) all += std::exp(score - most);
            for (size_t i = 0; i < scores.size(); ++i) {
                const size_t k = s.first[token] + i;
                const std::vector<float> value =
                    shape.values_in_keys
                        ? stored(shape.key_type, s.keys[k], kv, shape.key_dim)
                        : stored(shape.value_type, s.values[k], kv, shape.value_dim);
                for (int32_t d = 0; d < shape.value_dim; ++d)
                    y[h * shape.value_dim + d] += std::exp(scores[i] - most) / all * value[d];
            }
        }
        return y;
    }

    void expect_near_reference(const Shape& shape, const std::vector<Sequence>& sequences) {
        const Weights weights = random_weights(shape, random);
        const auto y = attend(shape, sequences, make_layout(sequences, true, random), weights);
        for (size_t s = 0; s < sequences.size(); ++s) {
            for (size_t t = 0; t < sequences[s].queries.size(); ++t) {
                const std::vector<double> expected = reference(shape, sequences[s], t, weights);
                for (size_t i = 0; i < expected.size(); ++i)
                    ASSERT_TRUE(near(y[s][t][i], expected[i], 1e-5)) << s << " " << t << " " << i;
            }
        }
    }
};

TEST_P(AttendTest, MatchesTheFormulaForRandomKeysAndIntervals) {  // # S2-10
    for (int round = 0; round < 12; ++round) {
        Shape shape;
        shape.flash = round % 2 == 0;
        shape.kv_heads = 1 + static_cast<int32_t>(random() % 3);
        shape.heads = shape.kv_heads * (1 + static_cast<int32_t>(random() % 5));
        shape.key_dim = std::vector{8, 20, 64, 72, 128}[random() % 5];
        shape.value_dim = round % 3 == 0 ? 48 : shape.key_dim;
        shape.softcap = round % 4 == 1 ? 2.0f : 0.0f;
        shape.sinks = round % 4 >= 2;
        shape.tile_queries = 1 + static_cast<int32_t>(random() % 60);
        shape.threads = 1 + static_cast<int32_t>(random() % 5);
        std::vector<Sequence> sequences;
        for (uint32_t s = 0; s < 1 + random() % 4; ++s)
            sequences.push_back(random_sequence(shape, static_cast<int32_t>(random() % 150),
                                                static_cast<int32_t>(random() % 20), random));
        expect_near_reference(shape, sequences);
    }
}

TEST_P(AttendTest, ReadsEveryCacheType) {
    const DType types[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,  DType::q4_0,
                           DType::q4_1, DType::q5_0, DType::q5_1, DType::iq4_nl};
    for (size_t i = 0; i < std::size(types); ++i) {
        Shape shape;
        shape.key_type = types[i];
        shape.value_type = types[(i * 4 + 2) % std::size(types)];
        shape.key_dim = 40;  // not a multiple of the block
        shape.value_dim = 56;
        expect_near_reference(shape, {random_sequence(shape, 70, 5, random)});
    }
}

// The ordinals span several splits, for both kernels.
TEST_P(AttendTest, LongContexts) {
    Shape shape;
    shape.heads = 2;
    shape.kv_heads = 1;
    shape.key_dim = shape.value_dim = 16;
    for (const bool flash : {true, false}) {
        shape.flash = flash;
        expect_near_reference(shape, {random_sequence(shape, 3000, 4, random)});
    }
}

// Every combination of bias, cap and sinks, with fewer query heads per tile than per kv head.
TEST_P(AttendTest, BiasesCapsAndSinksTogether) {
    for (int round = 0; round < 32; ++round) {
        Shape shape;
        shape.flash = round % 2 == 0;
        shape.sinks = round / 2 % 2 == 1;
        shape.softcap = round / 4 % 2 == 1 ? 3.0f : 0.0f;
        shape.bias = round / 8 % 2 == 0 ? PositionBias::alibi : PositionBias::buckets;
        shape.both_directions = round / 16 == 1;
        shape.buckets = round % 3 == 0 ? 32 : 12;
        shape.max_distance = round % 5 == 0 ? 128 : 50;
        shape.max_bias = round % 3 == 0 ? 8.0f : 4.0f;
        shape.kv_heads = 1 + round % 2;
        shape.heads = shape.kv_heads * (3 + round % 5);  // for ALiBi: not a power of two
        shape.tile_queries = 1 + round % 9;
        shape.key_dim = 24;
        shape.value_dim = 40;
        expect_near_reference(shape, {random_sequence(shape, 200, 9, random),
                                      random_sequence(shape, 17, 17, random)});
    }
}

// Both directions, with distances at and next to every boundary between buckets.
TEST_P(AttendTest, EveryBucketOfADistance) {
    for (const bool both : {false, true}) {
        Shape shape;
        shape.bias = PositionBias::buckets;
        shape.both_directions = both;
        shape.heads = shape.kv_heads = 1;
        shape.key_dim = shape.value_dim = 8;
        shape.key_type = shape.value_type = DType::f32;
        const Weights weights = random_weights(shape, random);
        for (const int32_t relative :
             {-500, -129, -128, -127, -91, -90, -64, -46, -45, -32, -23, -22,
              -21,  -20,  -16,  -12,  -11, -8,  -7,  -1,  0,   1,   7,   8,
              11,   12,   16,   23,   32,  64,  90,  91,  127, 128, 129, 500}) {
            Sequence s = random_sequence(shape, 2, 1, random);
            s.first = {0};
            s.last = {2};
            s.ordinals = {0, 1};
            s.positions = {1000};
            s.key_positions = {1000, 1000 + relative};
            const auto y = attend(shape, {s}, make_layout({s}, false, random), weights);
            const std::vector<double> expected = reference(shape, s, 0, weights);
            for (size_t i = 0; i < expected.size(); ++i)
                EXPECT_TRUE(near(y[0][0][i], expected[i], 1e-6)) << relative;
        }
    }
}

// Latent attention: many heads share the one key, whose beginning is the value.
TEST_P(AttendTest, ValuesInKeysOfEveryCacheType) {
    const DType types[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,  DType::q4_0,
                           DType::q4_1, DType::q5_0, DType::q5_1, DType::iq4_nl};
    for (size_t i = 0; i < std::size(types); ++i) {
        Shape shape;
        shape.flash = i % 2 == 0;
        shape.values_in_keys = true;
        shape.key_type = types[i];
        shape.heads = 20;
        shape.kv_heads = 1;
        shape.key_dim = i < 5 ? 72 : 40;
        shape.value_dim = i % 3 == 0 ? shape.key_dim : i % 3 == 1 ? 64 : 24;
        if (shape.value_dim > shape.key_dim) shape.value_dim = 8;
        shape.tile_queries = 1 + static_cast<int32_t>(i) * 6;
        expect_near_reference(shape, {random_sequence(shape, 100, 7, random)});
    }
    Shape shape;  // DeepSeek-V2
    shape.values_in_keys = true;
    shape.key_type = DType::q8_0;
    shape.heads = 128;
    shape.kv_heads = 1;
    shape.key_dim = 576;
    shape.value_dim = 512;
    expect_near_reference(shape, {random_sequence(shape, 50, 2, random)});
}

// With few queries and many keys, splits of the keys become tasks, with the same results.
TEST_P(AttendTest, SplitsOfTheKeysAreMergedInOrder) {
    for (const bool scattered : {false, true}) {
        Shape shape;
        shape.heads = 6;
        shape.kv_heads = scattered ? 3 : 1;
        shape.key_dim = 24;
        shape.value_dim = 40;
        shape.sinks = scattered;
        const Weights weights = random_weights(shape, random);
        std::vector<Sequence> sequences = {random_sequence(shape, 3000, 2, random),
                                           random_sequence(shape, 0, 1, random),
                                           random_sequence(shape, 700, 1, random)};
        sequences[0].first[1] = 600;  // sees no key of the first split
        sequences[0].last[1] = 2900;
        const Layout layout = make_layout(sequences, scattered, random);
        const auto expected = attend(shape, sequences, layout, weights);
        EXPECT_FALSE(was_split);
        for (const int32_t threads : {2, 4, 9}) {
            shape.threads = threads;
            for (const Cut cut : {Cut::whole, Cut::single, Cut::random}) {
                EXPECT_EQ(expected, attend(shape, sequences, layout, weights, cut));
                EXPECT_TRUE(was_split);
            }
        }
        for (size_t s = 0; s < sequences.size(); ++s) {
            for (size_t t = 0; t < sequences[s].queries.size(); ++t) {
                const std::vector<double> y = reference(shape, sequences[s], t, weights);
                for (size_t i = 0; i < y.size(); ++i)
                    ASSERT_TRUE(near(expected[s][t][i], y[i], 1e-5));
            }
        }
    }
}

TEST_P(AttendTest, BitsDependOnlyOnTheQueryAndTheKeysItSees) {
    for (int round = 0; round < 8; ++round) {
        Shape shape;
        shape.flash = round % 2 == 0;
        shape.key_type = round % 3 == 0 ? DType::f32 : round % 3 == 1 ? DType::f16 : DType::q8_0;
        shape.value_type = round % 2 == 0 ? DType::f16 : DType::q4_0;
        shape.key_dim = round < 4 ? 64 : 96;
        shape.heads = 2 * (1 + round % 4);
        shape.sinks = round % 3 == 1;
        shape.values_in_keys = round == 5 || round == 6;
        shape.bias = static_cast<PositionBias>((round + 1) % 3);
        shape.both_directions = round % 2 == 0;
        const Weights weights = random_weights(shape, random);
        std::vector<Sequence> sequences;
        for (const int32_t keys : {1400, 90, 33})
            sequences.push_back(random_sequence(shape, keys, 30, random));
        const Layout straight = make_layout(sequences, false, random);
        const auto expected = attend(shape, sequences, straight, weights);

        EXPECT_EQ(expected, attend(shape, sequences, straight, weights, Cut::random));
        EXPECT_EQ(expected, attend(shape, sequences, straight, weights, Cut::single));
        EXPECT_EQ(expected,
                  attend(shape, sequences, make_layout(sequences, true, random), weights));
        shape.tile_queries = 5;
        EXPECT_EQ(expected,
                  attend(shape, sequences, make_layout(sequences, true, random), weights));

        for (size_t s = 0; s < sequences.size(); ++s) {
            for (const size_t t : {size_t{0}, size_t{11}, size_t{29}}) {
                // Alone with all keys of its sequence, then with only the keys that it sees.
                shape.threads = 1 + static_cast<int32_t>(t) % 3;
                Sequence alone = sequences[s];
                alone.queries = {sequences[s].queries[t]};
                alone.first = {sequences[s].first[t]};
                alone.last = {sequences[s].last[t]};
                alone.positions = {sequences[s].positions[t]};
                EXPECT_EQ(expected[s][t], attend(shape, {alone}, make_layout({alone}, true, random),
                                                 weights)[0][0]);
                if (alone.first[0] >= alone.last[0]) continue;
                const auto cut = [&](auto& list) {
                    list.erase(list.begin() + alone.last[0], list.end());
                    list.erase(list.begin(), list.begin() + alone.first[0]);
                };
                cut(alone.keys);
                cut(alone.values);
                cut(alone.ordinals);
                cut(alone.key_positions);
                alone.last = {alone.last[0] - alone.first[0]};
                alone.first = {0};
                EXPECT_EQ(expected[s][t], attend(shape, {alone}, make_layout({alone}, true, random),
                                                 weights)[0][0]);
            }
        }
    }
}

// Forks of a sequence, whose first keys are in the same rows: they are computed in common tiles, with
// the bits that each has alone.
TEST_P(AttendTest, SequencesThatShareRowsAreComputedTogether) {
    for (int round = 0; round < 8; ++round) {
        Shape shape;
        shape.flash = round % 4 != 3;
        shape.kv_heads = 1 + round % 3;
        shape.heads = shape.kv_heads * (1 + round % 4);
        shape.key_dim = std::vector{24, 64, 20, 72}[round % 4];
        shape.value_dim = round % 2 == 0 ? 24 : 64;
        shape.key_type = round % 3 == 0 ? DType::f16 : round % 3 == 1 ? DType::q8_0 : DType::q4_0;
        shape.value_type = round % 2 == 0 ? DType::f16 : DType::q8_0;
        shape.bias = static_cast<PositionBias>(round % 3);
        shape.sinks = round % 4 == 1;
        const Weights weights = random_weights(shape, random);
        const Sequence whole = random_sequence(shape, 1800, 1, random);
        std::vector<Sequence> forks;
        std::vector<size_t> shared;  // keys that a fork shares with `whole`
        for (int f = 0; f < 7; ++f) {
            const auto n_tokens = static_cast<int32_t>(f == 5 ? 0 : 1 + random() % 3);
            const auto own = std::max(n_tokens, static_cast<int32_t>(random() % 600));
            Sequence fork = random_sequence(shape, own, n_tokens, random);
            const size_t n = f < 2 ? 1800 : f == 6 ? 0 : 1200 + random() % 40;
            const auto prepend = [n](auto& list, const auto& from) {
                list.insert(list.begin(), from.begin(), from.begin() + static_cast<int64_t>(n));
            };
            for (int32_t& ordinal : fork.ordinals)
                ordinal += n == 0 ? 0 : whole.ordinals[n - 1] + 1;
            prepend(fork.ordinals, whole.ordinals);
            prepend(fork.keys, whole.keys);
            prepend(fork.values, whole.values);
            prepend(fork.key_positions, whole.key_positions);
            for (int32_t t = 0; t < n_tokens; ++t) {  // some see no key of the first splits
                fork.first[t] = random() % 4 == 0 ? 700 : 0;
                fork.last[t] += static_cast<int32_t>(n);
            }
            forks.push_back(fork);
            shared.push_back(n);
        }
        Layout layout = make_layout(forks, round % 2 == 1, random);
        for (size_t f = 1; f < forks.size(); ++f) {
            std::copy_n(layout.row[0].begin(), shared[f], layout.row[f].begin());
            std::copy_n(layout.cut[0].begin(), shared[f], layout.cut[f].begin());
        }
        std::vector<std::vector<std::vector<float>>> expected;
        for (const Sequence& fork : forks)
            expected.push_back(
                attend(shape, {fork}, make_layout({fork}, true, random), weights)[0]);
        for (const int32_t threads : {1, 2, 5}) {
            for (const int32_t tile_queries : {kTileQueries, 17, 3}) {
                shape.threads = threads;
                shape.tile_queries = tile_queries;
                for (const Cut cut : {Cut::whole, Cut::random})
                    EXPECT_EQ(expected, attend(shape, forks, layout, weights, cut));
            }
        }
    }
}

// Sixteen forks are one tile of a thread, not sixteen.
TEST_P(AttendTest, ForksAreOneTile) {
    Shape shape;
    shape.kv_heads = 1;
    const auto count = [&](const std::vector<Sequence>& sequences, const Layout& layout) {
        const Operands operands(shape, sequences, layout);
        Frame frame = tokens(operands.n_tokens());
        frame.n_sequences = static_cast<int32_t>(sequences.size());
        const AttendArgs args = operands.args({});
        return kernels().attend.tasks(&args, frame);
    };
    Sequence s = random_sequence(shape, 1030, 1, random);
    std::iota(s.ordinals.begin(), s.ordinals.end(), 0);
    s.first = {0};
    s.last = {1030};
    const std::vector<Sequence> forks(16, s);
    Layout layout = make_layout(forks, false, random);
    EXPECT_EQ(count(forks, layout), 16);  // their keys are equal, but in other rows
    for (size_t f = 1; f < forks.size(); ++f)
        std::copy_n(layout.row[0].begin(), 1025, layout.row[f].begin());
    EXPECT_EQ(count(forks, layout), 1);
    for (size_t f = 1; f < forks.size(); ++f)  // less than a split is shared
        layout.row[f][500] = layout.row[f].back() + 1;
    EXPECT_EQ(count(forks, layout), 16);
}

TEST_P(AttendTest, NanInKeysMattersOnlyIfTheyAreSeen) {  // S2-35
    for (int round = 0; round < 12; ++round) {
        Shape shape;
        shape.flash = round % 2 == 0;
        shape.heads = round % 4 < 2 ? 4 : 24;  // with many queries, keys are transposed
        shape.key_type = shape.value_type =
            std::vector{DType::f32, DType::f16, DType::bf16}[round / 4];
        Sequence s = random_sequence(shape, 64, 3, random);
        s.first = {5, 5, 9};
        s.last = {40, 20, 9};
        const Layout layout = make_layout({s}, false, random);
        const auto expected = attend(shape, {s}, layout, {});
        for (const float poison : {kNan, kInf, -kInf}) {
            Sequence bad = s;
            for (const size_t k : {4, 40, 63}) {
                std::fill(bad.keys[k].begin(), bad.keys[k].end(), poison);
                std::fill(bad.values[k].begin(), bad.values[k].end(), poison);
            }
            EXPECT_EQ(expected, attend(shape, {bad}, layout, {}));
            std::fill(bad.values[30].begin(), bad.values[30].end(), poison);
            const auto seen = attend(shape, {bad}, layout, {});
            for (const float y : seen[0][0]) EXPECT_TRUE(near(y, poison, 0));
            EXPECT_EQ(seen[0][1], expected[0][1]);
            std::fill(bad.keys[30].begin(), bad.keys[30].end(), kNan);
            const auto nan = attend(shape, {bad}, layout, {});
            for (const float y : nan[0][0]) EXPECT_TRUE(std::isnan(y));
        }
        for (const float y : expected[0][2]) EXPECT_EQ(y, 0.0f) << "an empty interval";
    }
}

TEST_P(AttendTest, HugeScoresNeitherOverflowNorVanish) {
    for (int round = 0; round < 6; ++round) {
        Shape shape;
        shape.flash = round % 2 == 0;
        shape.key_type = shape.value_type =
            std::vector{DType::f32, DType::f16, DType::bf16}[round / 2];
        Sequence s = random_sequence(shape, 80, 1, random);
        s.first = {0};
        s.last = {80};
        for (float& x : s.queries[0]) x *= 1e4f;
        const auto y = attend(shape, {s}, make_layout({s}, false, random), {});
        const std::vector<double> expected = reference(shape, s, 0, {});
        for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(near(y[0][0][i], expected[i], 1e-2));
        // A score of -inf has a weight of zero; if all scores are -inf, the result is NaN.
        std::fill(s.queries[0].begin(), s.queries[0].end(), 1.0f);
        for (size_t k = 0; k < 40; ++k) std::fill(s.keys[k].begin(), s.keys[k].end(), -kInf);
        const auto half = attend(shape, {s}, make_layout({s}, false, random), {});
        for (const float v : half[0][0]) EXPECT_TRUE(std::isfinite(v));
        s.last = {40};
        const auto none = attend(shape, {s}, make_layout({s}, false, random), {});
        for (const float v : none[0][0]) EXPECT_TRUE(std::isnan(v));
    }
}

PLAIT_ON_EVERY_ISA(AttendTest);

}  // namespace
}  // namespace plait::cpu
