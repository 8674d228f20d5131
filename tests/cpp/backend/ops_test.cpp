// Operations of a graph through the CPU backend: from nodes and places to kernels and back, with
// fewer rows than the plan has room for. What the kernels compute is tested beside each of them.
#include <memory>
#include <numeric>

#include "backend/cpu/backend.h"
#include "backend/cpu/kernel_harness.h"
#include "graph/ops.h"
#include "tensor/run.h"

namespace plait::cpu {
namespace {

constexpr int64_t kRoom = 8;  // rows of every extent

class Vectors final : public WeightSource {
public:
    WeightId add(std::vector<float> values, Shape shape) {
        types_.push_back({DType::f32, shape});
        values_.push_back(std::move(values));
        return static_cast<WeightId>(values_.size() - 1);
    }
    size_t count() const override { return values_.size(); }
    const std::string& name(WeightId) const override { return name_; }
    const TensorType& type(WeightId id) const override { return types_[id]; }
    void read(WeightId id, uint64_t begin, std::span<std::byte> target) const override {
        const auto* bytes = reinterpret_cast<const std::byte*>(values_[id].data());
        std::copy_n(bytes + begin, target.size(), target.begin());
    }

private:
    std::string name_ = "vector";
    std::vector<TensorType> types_;
    std::vector<std::vector<float>> values_;
};

class OpsTest : public KernelTest {
protected:
    template <typename T>
    Value input(InputField field, Shape shape, Extent extent, const std::vector<T>& data) {
        constexpr DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::i32;
        const uint8_t group = static_cast<uint8_t>(inputs_++);
        const Value value = graph_.input({field, group}, {dtype, shape}, extent);
        places_.resize(value.id + 1);
        places_[value.id] = {Space::input, 0, 0, input_bytes_.size()};
        const size_t room = value.type().bytes();
        input_bytes_.resize(input_bytes_.size() + (room + 63) / 64 * 64, std::byte{0xff});
        std::memcpy(&input_bytes_[places_[value.id].offset], data.data(), data.size() * sizeof(T));
        return value;
    }
    Value tokens_of(Shape shape, const std::vector<float>& data) {
        return input(InputField::embeddings, shape, Extent::tokens, data);
    }
    Value weight(Shape shape, std::vector<float> data) {
        return graph_.weight({source_->add(std::move(data), shape), {DType::f32, shape}});
    }
    Value storage(DType dtype, Shape shape) {
        const TensorType type{dtype, shape};
        const auto index = static_cast<uint32_t>(storage_.size());
        storage_.push_back(backend_.allocate(type.bytes()));
        return graph_.storage(index, type);
    }
    float* rows_of(Value stored) {
        return reinterpret_cast<float*>(storage_[places_[stored.id].id]->host());
    }
    // Its rows that the run made, and a check that it made no others.
    std::vector<float> result(Value value) {
        const int64_t rows = value.extent() == Extent::outputs ? counts_.outputs : counts_.tokens;
        const int64_t width = value.shape().elements() / value.shape()[0];
        const auto* first =
            reinterpret_cast<const float*>(arena_->host() + places_[value.id].offset);
        for (int64_t i = rows * width; i < value.shape().elements(); ++i)
            EXPECT_TRUE(std::isnan(first[i])) << "a row that does not exist was written";
        return {first, first + rows * width};
    }
    void run(Counts counts) {
        counts_ = counts;
        places_.resize(graph_.nodes().size());
        for (Place& place : places_)
            if (place.space == Space::arena) place = {};
        uint64_t arena_bytes = 0;
        for (NodeId id = 0; id < places_.size(); ++id) {
            const Node& node = graph_.node(id);
            Place& place = places_[id];
            if (std::holds_alternative<ops::Weight>(node.op)) {
                place.space = Space::weight;
            } else if (const auto* stored = std::get_if<ops::Storage>(&node.op)) {
                place = {Space::storage, 0, stored->index, 0};
            } else if (is_alias(info_of(node.op))) {
                place = places_[aliased_operand(node.op)];
            } else if (place.space == Space::nowhere) {
                place = {Space::arena, 0, 0, arena_bytes};
                arena_bytes += (node.type.bytes() + 63) / 64 * 64;
            }
        }
        std::vector<NodeId> nodes(graph_.nodes().size());
        std::iota(nodes.begin(), nodes.end(), 0u);
        std::vector<Buffer*> storage;
        for (const auto& buffer : storage_) storage.push_back(buffer.get());
        const WeightStores weights({backend_.make_weight_store(source_)});
        arena_bytes = (arena_bytes + 4095) / 4096 * 4096;
        // Lowering adds no nodes to a graph of floats.
        const auto lowered = backend_.lower(graph_, /*fuse=*/false);
        ASSERT_EQ(lowered->nodes().size(), nodes.size());
        const auto executable = lowered->compile({.nodes = nodes,
                                                  .stages = nodes,
                                                  .places = places_,
                                                  .weights = DeviceWeights(weights, 0),
                                                  .storage = storage,
                                                  .scratch_offset = arena_bytes});
        arena_bytes += executable->scratch_bytes();
        arena_ = backend_.allocate(arena_bytes);
        std::memset(arena_->host(), 0xff, arena_bytes);
        const auto inputs = backend_.allocate(input_bytes_.size());
        inputs->write(0, input_bytes_);
        RunArguments arguments;
        arguments.arena = arena_.get();
        arguments.inputs = inputs.get();
        arguments.counts = counts;
        executable->run(arguments);
    }
    std::vector<float> some(int64_t n) {
        const Floats values = random_floats(n, random);
        return {values.data(), values.data() + n};
    }

    // Keys and values go to rows of a cache; two tokens see themselves and what came before.
    void attend_over_stored_rows(bool flash) {
        const std::vector<float> q = some(2 * 2 * 4), k = some(2 * 4), v = some(2 * 4);
        AttendInputs in;
        const Value rows =
            input(InputField::write_rows, {kRoom}, Extent::tokens, std::vector<int32_t>{6, 1});
        const Value keys = storage(DType::f32, {9, 4}), values = storage(DType::f32, {9, 4});
        in.q = tokens_of({kRoom, 2, 4}, q);
        in.keys = store_rows(keys, tokens_of({kRoom, 1, 4}, k), rows);
        in.values = store_rows(values, tokens_of({kRoom, 1, 4}, v), rows);
        const auto fixed = [&](InputField field, Shape shape, std::vector<int32_t> data) {
            return input(field, shape, Extent::fixed, data);
        };
        in.token_begin = fixed(InputField::token_begin, {2}, {0, 2});
        in.runs = fixed(InputField::runs, {kRoom, 4}, {6, 1, 0, 0, 1, 1, 1, 1});
        in.run_begin = fixed(InputField::run_begin, {2}, {0, 2});
        in.first = input(InputField::first, {kRoom}, Extent::tokens, std::vector<int32_t>{0, 0});
        in.last = input(InputField::last, {kRoom}, Extent::tokens, std::vector<int32_t>{1, 2});
        in.sinks = weight({2}, {0.5f, -0.5f});
        const Value y = attend(in, AttendParams{2, 1, 4, 4, 0.5f, 0.0f, flash});
        run({.tokens = 2, .sequences = 1});
        EXPECT_EQ(0, std::memcmp(rows_of(keys) + 6 * 4, k.data(), 16));
        EXPECT_EQ(0, std::memcmp(rows_of(values) + 1 * 4, v.data() + 4, 16));
        for (int t = 0; t < 2; ++t) {
            for (int h = 0; h < 2; ++h) {
                double weights[2] = {}, all = std::exp(h == 0 ? 0.5 : -0.5);
                for (int j = 0; j <= t; ++j) {
                    double dot = 0;
                    for (int d = 0; d < 4; ++d)
                        dot += double(q[(t * 2 + h) * 4 + d]) * k[j * 4 + d];
                    all += weights[j] = std::exp(0.5 * dot);
                }
                for (int d = 0; d < 4; ++d)
                    EXPECT_TRUE(near(result(y)[(t * 2 + h) * 4 + d],
                                     (weights[0] * v[d] + weights[1] * v[4 + d]) / all, 1e-5));
            }
        }
    }

    Graph graph_;

private:
    CpuBackend backend_{{2, std::string(to_string(GetParam()))}};
    std::shared_ptr<Vectors> source_ = std::make_shared<Vectors>();
    std::vector<std::unique_ptr<Buffer>> storage_;
    std::vector<Place> places_;
    std::vector<std::byte> input_bytes_;
    std::unique_ptr<Buffer> arena_;
    Counts counts_;
    int inputs_ = 0;
};

TEST_P(OpsTest, Elementwise) {
    const std::vector<float> a = some(5 * 12), b = some(5 * 12), w = some(12);
    const Value x = tokens_of({kRoom, 12}, a), y = tokens_of({kRoom, 12}, b);
    const Value vector = weight({12}, w);
    const Value sum = x + y, shifted = x + vector, product = x * y, scaled = x * vector;
    const Value times = scale(x, -3.0f), capped = softcap(x, 0.5f);
    const Value rectified = activate(x, Activation::relu), gated = gate(x, y, Activation::relu);
    run({.tokens = 5});
    for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(result(sum)[i], a[i] + b[i]);
        EXPECT_EQ(result(shifted)[i], a[i] + w[i % 12]);
        EXPECT_EQ(result(product)[i], a[i] * b[i]);
        EXPECT_EQ(result(scaled)[i], a[i] * w[i % 12]);
        EXPECT_EQ(result(times)[i], a[i] * -3.0f);
        EXPECT_TRUE(near(result(capped)[i], 0.5 * std::tanh(a[i] / 0.5), 1e-6));
        EXPECT_EQ(result(rectified)[i], std::max(0.0f, a[i]));
        EXPECT_EQ(result(gated)[i], std::max(0.0f, a[i]) * b[i]);
    }
}

// Of whole rows and of the heads in a row; the weight may come reshaped.
TEST_P(OpsTest, Norms) {
    const std::vector<float> a = some(3 * 20), w = some(20);
    const Value x = tokens_of({kRoom, 20}, a);
    const Value whole = rms_norm(x, weight({20}, w), 1e-6f);
    const Value heads = rms_norm(split_heads(x, 2), {}, 1e-6f);
    run({.tokens = 3});
    for (int t = 0; t < 3; ++t) {
        double squares[2] = {};
        for (int i = 0; i < 20; ++i) squares[i / 10] += double(a[t * 20 + i]) * a[t * 20 + i];
        for (int i = 0; i < 20; ++i) {
            const double x_i = a[t * 20 + i];
            EXPECT_TRUE(near(result(whole)[t * 20 + i],
                             x_i * w[i] / std::sqrt((squares[0] + squares[1]) / 20 + 1e-6), 1e-5));
            EXPECT_TRUE(near(result(heads)[t * 20 + i],
                             x_i / std::sqrt(squares[i / 10] / 10 + 1e-6), 1e-5));
        }
    }
}

// One weight for all heads, one for each head, and a plain vector as long as a row.
TEST_P(OpsTest, NormsWithAWeightForEachHead) {
    const std::vector<float> a = some(3 * 20), w = some(20), b = some(20);
    const Value x = split_heads(tokens_of({kRoom, 20}, a), 2);
    const Value one = layer_norm(x, weight({10}, {w.begin(), w.begin() + 10}), {}, 1e-5f);
    const Value each = layer_norm(x, weight({2, 10}, w), weight({2, 10}, b), 1e-5f);
    const Value flat = rms_norm(x, weight({20}, w), 1e-5f);
    const Value unit = l2_norm(x, 1e-12f);
    run({.tokens = 3});
    for (int v = 0; v < 6; ++v) {
        double sum = 0, squares = 0, spread = 0;
        for (int i = 0; i < 10; ++i) {
            sum += a[v * 10 + i];
            squares += double(a[v * 10 + i]) * a[v * 10 + i];
        }
        for (int i = 0; i < 10; ++i) spread += std::pow(a[v * 10 + i] - sum / 10, 2);
        for (int i = 0; i < 10; ++i) {
            const double x_i = a[v * 10 + i];
            const double normal = (x_i - sum / 10) / std::sqrt(spread / 10 + 1e-5);
            const int at = v % 2 * 10 + i;
            EXPECT_TRUE(near(result(one)[v * 10 + i], normal * w[i], 1e-5));
            EXPECT_TRUE(near(result(each)[v * 10 + i], normal * w[at] + b[at], 1e-5));
            EXPECT_TRUE(
                near(result(flat)[v * 10 + i], x_i * w[at] / std::sqrt(squares / 10 + 1e-5), 1e-5));
            EXPECT_TRUE(near(result(unit)[v * 10 + i], x_i / std::sqrt(squares), 1e-5));
        }
    }
}

// A vector for each head, one that is as long as a row, and a number for each head of each token.
TEST_P(OpsTest, OperandsThatServeMoreThanOnce) {
    const std::vector<float> a = some(5 * 12), w = some(12);
    const Value x = tokens_of({kRoom, 3, 4}, a);
    const Value by_head = x * weight({3, 4}, w), flat = x + weight({12}, w);
    const Value by_element = x - weight({4}, {w.begin(), w.begin() + 4});
    const Value sums = row_sum(x);
    const Value centred = x - scale(sums, 0.25f), scaled = x * sums, added = x + sums;
    run({.tokens = 5});
    for (size_t i = 0; i < a.size(); ++i) {
        const size_t v = i / 4;
        const float sum = result(sums)[v];
        EXPECT_TRUE(near(sum, a[4 * v] + a[4 * v + 1] + a[4 * v + 2] + a[4 * v + 3], 1e-6));
        EXPECT_EQ(result(by_head)[i], a[i] * w[i % 12]);
        EXPECT_EQ(result(flat)[i], a[i] + w[i % 12]);
        EXPECT_EQ(result(by_element)[i], a[i] - w[i % 4]);
        EXPECT_EQ(result(centred)[i], a[i] - 0.25f * sum);
        EXPECT_EQ(result(scaled)[i], a[i] * sum);
        EXPECT_EQ(result(added)[i], a[i] + sum);
    }
}

TEST_P(OpsTest, PartsOfVectorsAndTheirUnion) {
    const std::vector<float> a = some(5 * 12), b = some(5 * 2);
    const Value x = tokens_of({kRoom, 12}, a), heads = split_heads(x, 3);
    const Value middle = slice(x, 3, 5), ends = slice(heads, 3, 1);
    const Value one = tokens_of({kRoom, 1, 2}, b);
    const Value shared = concat(heads, one), own = concat(heads, slice(heads, 0, 2));
    const Value rows = concat(x, tokens_of({kRoom, 2}, b));
    run({.tokens = 5});
    for (size_t i = 0; i < 5 * 5; ++i) EXPECT_EQ(result(middle)[i], a[i / 5 * 12 + 3 + i % 5]);
    for (size_t i = 0; i < 5 * 3; ++i) EXPECT_EQ(result(ends)[i], a[i * 4 + 3]);
    for (size_t i = 0; i < 5 * 3 * 6; ++i) {
        const size_t v = i / 6, k = i % 6;
        EXPECT_EQ(result(shared)[i], k < 4 ? a[v * 4 + k] : b[v / 3 * 2 + k - 4]);
        EXPECT_EQ(result(own)[i], k < 4 ? a[v * 4 + k] : a[v * 4 + k - 4]);
    }
    for (size_t i = 0; i < 5 * 14; ++i)
        EXPECT_EQ(result(rows)[i],
                  i % 14 < 12 ? a[i / 14 * 12 + i % 14] : b[i / 14 * 2 + i % 14 - 12]);
}

// Token types: one row of a table is added to every token.
TEST_P(OpsTest, ARowOfAWeightIsAnOperand) {
    const std::vector<float> a = some(5 * 6), table = some(3 * 6);
    const Value x = tokens_of({kRoom, 6}, a);
    const Value types = weight({3, 6}, table);
    const Value added = x + weight_row(types, 2), first = x * weight_row(types, 0);
    const Value by_head = split_heads(x, 2) - reshape(weight_row(types, 1), {6});
    const Value normed = rms_norm(x, weight_row(types, 1), 1e-5f), plain = rms_norm(x, {}, 1e-5f);
    run({.tokens = 5});
    for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(result(added)[i], a[i] + table[12 + i % 6]);
        EXPECT_EQ(result(first)[i], a[i] * table[i % 6]);
        EXPECT_EQ(result(by_head)[i], a[i] - table[6 + i % 6]);
        EXPECT_EQ(result(normed)[i], result(plain)[i] * table[6 + i % 6]);
    }
}

TEST_P(OpsTest, SelectedRowsHaveTheOutputsExtent) {
    const std::vector<float> a = some(6 * 3);
    const Value x = tokens_of({kRoom, 3}, a);
    const Value y = select_rows(
        x, input(InputField::output_tokens, {kRoom}, Extent::outputs, std::vector<int32_t>{5, 1}));
    const Value twice = scale(y, 2.0f);
    run({.tokens = 6, .outputs = 2});
    EXPECT_EQ(result(y), (std::vector<float>{a[15], a[16], a[17], a[3], a[4], a[5]}));
    EXPECT_EQ(result(twice)[0], 2 * a[15]);
}

// The ramp of arXiv:2309.00071 for a context of 4096: pairs that turn more than 32 times over it
// keep their frequency, those that turn less than once are interpolated.
TEST_P(OpsTest, RopeTablesOfYarnAndFactors) {
    Rope rope;
    rope.n_rot = 64;
    rope.scale = 0.25;
    rope.extrapolation = 1.0;
    rope.magnitude = 1.1;
    rope.n_ctx_original = 4096;
    Rope plain;
    plain.n_rot = 64;
    std::vector<float> factors(32);
    for (size_t i = 0; i < 32; ++i) factors[i] = 1 + static_cast<float>(i) / 4;
    const std::vector<int32_t> at = {0, 3, 5000};
    const Value positions = input(InputField::positions, {kRoom}, Extent::tokens, at);
    const Value yarn = rope_table(positions, rope);
    const Value divided = rope_table(positions, plain, weight({32}, factors));
    run({.tokens = 3});
    const double low = std::floor(64 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(1e4)));
    const double high = std::ceil(64 * std::log(4096 / (2 * M_PI)) / (2 * std::log(1e4)));
    for (size_t t = 0; t < 3; ++t) {
        for (size_t i = 0; i < 32; ++i) {
            const double each = std::pow(1e4, -2.0 * static_cast<double>(i) / 64);
            const double share =
                std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
            const double angle = at[t] * each * (0.25 * share + 1 - share);
            EXPECT_TRUE(near(result(yarn)[t * 64 + 2 * i], 1.1 * std::cos(angle), 1e-6));
            EXPECT_TRUE(near(result(yarn)[t * 64 + 2 * i + 1], 1.1 * std::sin(angle), 1e-6));
            EXPECT_TRUE(
                near(result(divided)[t * 64 + 2 * i], std::cos(at[t] * each / factors[i]), 1e-6));
        }
    }
}

TEST_P(OpsTest, RoutesAndTheirSum) {
    const std::vector<float> logits = {1, 3, 2, 9, 0, 0}, outputs = some(2 * 2 * 5);
    const Value routes = route(tokens_of({kRoom, 3}, logits), RouteParams{2, true, 2.0f});
    const Value y = combine(tokens_of({kRoom, 2, 5}, outputs), routes);
    run({.tokens = 2});
    for (int t = 0; t < 2; ++t) {
        const double second = 1 / (1 + std::exp(t == 0 ? 1.0 : 9.0));  // of two, one or nine apart
        for (int i = 0; i < 5; ++i) {
            const double expected =
                2 * ((1 - second) * outputs[t * 10 + i] + second * outputs[t * 10 + 5 + i]);
            EXPECT_TRUE(near(result(y)[t * 5 + i], expected, 1e-5));
        }
    }
}

// A bias chooses the experts of the second group, and has no part in their weights.
TEST_P(OpsTest, RoutesByBiasedScoresOfGroups) {
    const std::vector<float> logits = {2, 1, 0, -1, 3, 3, -1, 0};
    const Value x = tokens_of({kRoom, 4}, logits);
    const RouteParams how{2, false, 1.0f, Gating::sigmoid, 2, 1};
    const Value routes = route(x, how, weight({4}, {0, 0, 4, 4}));
    const Value chosen = route(x, RouteParams{2, false, 1.0f, Gating::softmax_chosen});
    const Value ones = tokens_of({kRoom, 2, 1}, {1, 1, 1, 1});
    const Value sigmoids = combine(ones, routes), softmaxes = combine(ones, chosen);
    run({.tokens = 2});
    for (int t = 0; t < 2; ++t) {
        const auto sigmoid = [](double l) { return 1 / (1 + std::exp(-l)); };
        EXPECT_TRUE(near(result(sigmoids)[t],
                         sigmoid(logits[t * 4 + 2]) + sigmoid(logits[t * 4 + 3]), 1e-6));
        EXPECT_TRUE(near(result(softmaxes)[t], 1, 1e-6));
    }
}

TEST_P(OpsTest, ClampedGatesAndOffsets) {
    const std::vector<float> a = some(5 * 12), b = some(5 * 12);
    const Value x = tokens_of({kRoom, 12}, a), y = tokens_of({kRoom, 12}, b);
    const Value gated = clamped_swiglu(x, y, 1.702f, 0.5f), moved = scale(x, -2.0f, 0.75f);
    run({.tokens = 5});
    for (size_t i = 0; i < a.size(); ++i) {
        const double g = std::min(0.5, double(a[i])), up = std::clamp(double(b[i]), -0.5, 0.5);
        EXPECT_TRUE(near(result(gated)[i], g / (1 + std::exp(-1.702 * g)) * (up + 1), 1e-6));
        EXPECT_TRUE(near(result(moved)[i], -2 * a[i] + 0.75, 1e-6));
    }
}

TEST_P(OpsTest, HeadsTimesTheirMatrices) {
    const std::vector<float> a = some(5 * 2 * 7), w = some(2 * 3 * 7);
    const Value y = head_linear(tokens_of({kRoom, 2, 7}, a), weight({2, 3, 7}, w));
    run({.tokens = 5});
    for (size_t i = 0; i < 5 * 2 * 3; ++i) {
        const size_t row = i / 3, head = row % 2;
        double expected = 0;
        for (size_t k = 0; k < 7; ++k)
            expected += double(a[row * 7 + k]) * w[(head * 3 + i % 3) * 7 + k];
        EXPECT_TRUE(near(result(y)[i], expected, 1e-5));
    }
}

// A table of positions: any rows, as they stand there.
TEST_P(OpsTest, EmbedsRowsOfATable) {
    const std::vector<float> table = some(9 * 5);
    const Value y =
        embed(weight({9, 5}, table),
              input(InputField::positions, {kRoom}, Extent::tokens, std::vector<int32_t>{8, 0, 8}));
    run({.tokens = 3});
    for (size_t i = 0; i < 15; ++i) EXPECT_EQ(result(y)[i], table[(i / 5 == 1 ? 0 : 40) + i % 5]);
}

TEST_P(OpsTest, AttentionInOnePass) { attend_over_stored_rows(/*flash=*/true); }
TEST_P(OpsTest, AttentionByScores) { attend_over_stored_rows(/*flash=*/false); }

// An encoder: two sequences, of three tokens and of two, whose keys and values are the graph's.
TEST_P(OpsTest, AttentionWithinAMicrobatch) {
    const std::vector<float> q = some(5 * 2 * 4), k = some(5 * 4), v = some(5 * 6), b = some(8 * 2);
    const std::vector<int32_t> at = {0, 1, 2, 4, 9};
    const auto by_token = [&](InputField field, std::vector<int32_t> data) {
        return input(field, {kRoom}, Extent::tokens, data);
    };
    const auto fixed = [&](InputField field, Shape shape, std::vector<int32_t> data) {
        return input(field, shape, Extent::fixed, data);
    };
    AttendInputs in;
    in.q = tokens_of({kRoom, 2, 4}, q);
    in.keys = merge_heads(tokens_of({kRoom, 1, 4}, k));
    in.values = merge_heads(tokens_of({kRoom, 1, 6}, v));
    in.token_begin = fixed(InputField::token_begin, {3}, {0, 3, 5});
    in.runs = fixed(InputField::runs, {kRoom, 4}, {0, 3, 0, 0, 3, 2, 0, 0});
    in.run_begin = fixed(InputField::run_begin, {3}, {0, 1, 2});
    in.first = by_token(InputField::first, {0, 0, 0, 0, 0});
    in.last = by_token(InputField::last, {3, 3, 3, 2, 2});
    AttendInputs latent = in;
    latent.values = {};
    in.positions = by_token(InputField::positions, at);
    in.key_positions = fixed(InputField::key_positions, {kRoom}, at);
    in.key_begin = fixed(InputField::key_begin, {3}, {0, 3, 5});
    AttendParams how{.n_heads = 2,
                     .n_kv_heads = 1,
                     .key_dim = 4,
                     .value_dim = 6,
                     .scale = 0.5f,
                     .softcap = 0.0f,
                     .flash = true};
    how.bias = PositionBias::alibi;
    how.max_bias = 2.0f;
    const Value alibi = attend(in, how);
    how.bias = PositionBias::buckets;
    how.max_distance = 6;
    how.both_directions = true;
    in.bias = weight({8, 2}, b);
    const Value buckets = attend(in, how);
    how.bias = PositionBias::none;
    how.value_dim = 3;
    const Value within_keys = attend(latent, how);
    run({.tokens = 5, .sequences = 2});

    // Of four buckets a direction: 0, 1, 2 (to 3), 3.
    const auto bucket = [](int d) {
        const int n = std::abs(d);
        return (d > 0 ? 4 : 0) + (n < 2 ? n : n < 4 ? 2 : 3);
    };
    for (int t = 0; t < 5; ++t) {
        const int begin = t < 3 ? 0 : 3, end = t < 3 ? 3 : 5;
        for (int h = 0; h < 2; ++h) {
            double sums[3] = {}, means[3][6] = {};
            for (int j = begin; j < end; ++j) {
                double dot = 0;
                for (int d = 0; d < 4; ++d) dot += double(q[(t * 2 + h) * 4 + d]) * k[j * 4 + d];
                const double biases[] = {-std::abs(at[j] - at[t]) * (h == 0 ? 0.5 : 0.25),
                                         b[bucket(at[j] - at[t]) * 2 + h], 0};
                for (int kind = 0; kind < 3; ++kind) {
                    const double weight = std::exp(0.5 * dot + biases[kind]);
                    sums[kind] += weight;
                    for (int d = 0; d < (kind < 2 ? 6 : 3); ++d)
                        means[kind][d] += weight * (kind < 2 ? v[j * 6 + d] : k[j * 4 + d]);
                }
            }
            for (int d = 0; d < 6; ++d) {
                const int at_d = (t * 2 + h) * 6 + d;
                EXPECT_TRUE(near(result(alibi)[at_d], means[0][d] / sums[0], 1e-5));
                EXPECT_TRUE(near(result(buckets)[at_d], means[1][d] / sums[1], 1e-5));
            }
            for (int d = 0; d < 3; ++d)
                EXPECT_TRUE(
                    near(result(within_keys)[(t * 2 + h) * 3 + d], means[2][d] / sums[2], 1e-5));
        }
    }
}

TEST_P(OpsTest, RowsMoveAndTurn) {
    Rope rope;
    rope.n_rot = 4;
    rope.base = 100.0;
    rope.magnitude = 1.25;
    const Value keys = storage(DType::f32, {5, 2 * 6});
    const auto list = [&](InputField field, std::vector<int32_t> data) {
        return input(field, {kRoom}, Extent::moves, data);
    };
    const Value copied =
        copy_rows(keys, list(InputField::from_rows, {0, 3}), list(InputField::to_rows, {3, 1}));
    const Value turned = rotate_rows(copied, list(InputField::to_rows, {1, 2}),
                                     list(InputField::deltas, {7, 0}), {rope, 2, 6});
    const std::vector<float> row = some(12);
    run({});  // no moves: nothing happens
    std::copy(row.begin(), row.end(), rows_of(turned));
    run({.moves = 2});
    EXPECT_EQ(0, std::memcmp(rows_of(keys) + 3 * 12, row.data(), 12 * sizeof(float)));
    for (int h = 0; h < 2; ++h) {
        const float* from = row.data() + h * 6;
        const float* to = rows_of(keys) + 12 + h * 6;
        for (int i = 0; i < 2; ++i) {
            const double angle = 7 * std::pow(100.0, -i / 2.0);
            const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
            EXPECT_TRUE(near(to[i], from[i] * c - from[i + 2] * s, 1e-5));
            EXPECT_TRUE(near(to[i + 2], from[i] * s + from[i + 2] * c, 1e-5));
        }
        EXPECT_EQ(to[4], from[4]);
        EXPECT_EQ(to[5], from[5]);
    }
}

// Two sequences of 3 and 1 tokens: from zeros to row 1, and on from row 2 to row 3.
TEST_P(OpsTest, RecurrentLayers) {
    const auto fixed = [&](InputField field, std::vector<int32_t> data) {
        return input(field, {kRoom + 1}, Extent::fixed, data);
    };
    States states;
    states.read_rows = fixed(InputField::read_states, {0, 2});
    states.write_rows = fixed(InputField::write_states, {1, 3});
    states.token_begin = fixed(InputField::token_begin, {0, 3, 4});
    const auto on = [&](Value storage) {
        States with = states;
        with.storage = storage;
        return with;
    };
    const std::vector<float> x = some(4 * 2), w = some(2 * 2), bias = some(2), d = some(2);
    const std::vector<float> a = {-0.5f, -1.0f, -2.0f, -0.1f, -0.2f, -3.0f}, b = some(4 * 3);
    const std::vector<float> c = some(4 * 3), dt = {0.1f, 1.0f, 2.0f, 0.5f, 0.3f, 0.7f, 1.5f, 0.2f};
    const Value tokens = tokens_of({kRoom, 2}, x), weights = weight({2, 2}, w);
    const Value windows = storage(DType::f32, {4, 2}), matrices = storage(DType::f32, {4, 6});
    const Value plain = short_conv(tokens, weights, {}, on(windows));
    const Value biased = short_conv(tokens, weights, weight({2}, bias), on(windows));
    SelectiveScanInputs in;
    in.x = tokens;
    in.dt = tokens_of({kRoom, 2}, dt);
    in.a = weight({2, 3}, a);
    in.b = tokens_of({kRoom, 3}, b);
    in.c = tokens_of({kRoom, 3}, c);
    in.d = weight({2}, d);
    const Value scanned = selective_scan(in, on(matrices));
    run({});  // no sequences: nothing happens
    const std::vector<float> window = some(2);
    std::copy(window.begin(), window.end(), rows_of(windows) + 2 * 2);
    run({.tokens = 4, .sequences = 2});
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 2; ++i) {
            const float before = t == 0 ? 0.0f : t == 3 ? window[i] : x[(t - 1) * 2 + i];
            const double sum = double(w[i * 2]) * before + double(w[i * 2 + 1]) * x[t * 2 + i];
            EXPECT_TRUE(near(result(plain)[t * 2 + i], sum, 1e-5));
            EXPECT_TRUE(near(result(biased)[t * 2 + i], sum + bias[i], 1e-5));
        }
    }
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(rows_of(windows)[2 + i], x[2 * 2 + i]);
        EXPECT_EQ(rows_of(windows)[3 * 2 + i], x[3 * 2 + i]);
        double h[3] = {};
        for (int t = 0; t < 4; ++t) {
            double y = double(d[i]) * x[t * 2 + i];
            for (int k = 0; k < 3; ++k) {
                if (t == 3) h[k] = 0;
                h[k] = std::exp(double(dt[t * 2 + i]) * a[i * 3 + k]) * h[k] +
                       double(dt[t * 2 + i]) * x[t * 2 + i] * b[t * 3 + k];
                y += h[k] * c[t * 3 + k];
            }
            EXPECT_TRUE(near(result(scanned)[t * 2 + i], y, 1e-5));
        }
    }
}

// One sequence of three tokens from zeros; each column of a head's state goes its own way.
TEST_P(OpsTest, MatrixStates) {
    constexpr int kTokens = 3, kHeads = 4, kDim = 2;
    const auto fixed = [&](InputField field, std::vector<int32_t> data) {
        return input(field, {kRoom + 1}, Extent::fixed, data);
    };
    States states;
    states.read_rows = fixed(InputField::read_states, {0});
    states.write_rows = fixed(InputField::write_states, {1});
    states.token_begin = fixed(InputField::token_begin, {0, kTokens});
    const auto fresh = [&](int64_t elements) {
        States with = states;
        with.storage = storage(DType::f32, {2, elements});
        return with;
    };
    const auto of_heads = [&](const std::vector<float>& data) {
        const int64_t heads = static_cast<int64_t>(data.size()) / (kTokens * kDim);
        return tokens_of({kRoom, heads, kDim}, data);
    };
    const std::vector<float> x = some(24), dt = some(12), b = some(12), c = some(12), g = some(12);
    const std::vector<float> a = some(4), d = some(4), u = some(8), beta = some(12);
    const std::vector<float> r = some(24), k = some(24), w = some(24), p = some(24), q = some(24);
    const Value shifted = token_shift(tokens_of({kRoom, 8}, x), fresh(8));
    const Value ssd = ssd_scan({.x = of_heads(x),
                                .dt = tokens_of({kRoom, kHeads}, dt),
                                .a = weight({kHeads}, a),
                                .d = weight({kHeads}, d),
                                .b = of_heads(b),
                                .c = of_heads(c)},
                               fresh(16));
    const Value rwkv6 = wkv6({.r = of_heads(r),
                              .k = of_heads(k),
                              .v = of_heads(x),
                              .w = of_heads(w),
                              .u = weight({kHeads, kDim}, u)},
                             fresh(16));
    const Value rwkv7 = wkv7({.r = of_heads(r),
                              .w = of_heads(w),
                              .k = of_heads(k),
                              .v = of_heads(x),
                              .a = of_heads(p),
                              .b = of_heads(q)},
                             fresh(16));
    const Value delta = delta_rule({.q = of_heads(c),
                                    .k = of_heads(b),
                                    .v = of_heads(x),
                                    .g = tokens_of({kRoom, kHeads}, g),
                                    .beta = tokens_of({kRoom, kHeads}, beta)},
                                   fresh(16));
    run({.tokens = kTokens, .sequences = 1});

    for (int h = 0; h < kHeads; ++h) {
        for (int j = 0; j < kDim; ++j) {
            double s_ssd[kDim] = {}, s_6[kDim] = {}, s_7[kDim] = {}, s_delta[kDim] = {};
            for (int t = 0; t < kTokens; ++t) {
                const int head = t * kHeads + h, at = head * kDim + j;
                const float* b_t = &b[(t * 2 + h / 2) * kDim];  // two heads share b and c
                const float* c_t = &c[(t * 2 + h / 2) * kDim];
                double turned = 0, stored = 0;
                for (int i = 0; i < kDim; ++i) {
                    turned += s_7[i] * p[head * kDim + i];
                    stored += b_t[i] * (s_delta[i] *= std::exp(double(g[head])));
                }
                double ssd_sum = d[h] * x[at], sum_6 = 0, sum_7 = 0, delta_sum = 0;
                for (int i = 0; i < kDim; ++i) {
                    const int key = head * kDim + i;
                    const double kv = double(k[key]) * x[at];
                    s_ssd[i] =
                        std::exp(double(dt[head]) * a[h]) * s_ssd[i] + dt[head] * x[at] * b_t[i];
                    ssd_sum += c_t[i] * s_ssd[i];
                    sum_6 += r[key] * (s_6[i] + u[h * kDim + i] * kv);
                    s_6[i] = w[key] * s_6[i] + kv;
                    s_7[i] = w[key] * s_7[i] + turned * q[key] + kv;
                    sum_7 += r[key] * s_7[i];
                    s_delta[i] += b_t[i] * beta[head] * (x[at] - stored);
                    delta_sum += c_t[i] * s_delta[i];
                }
                EXPECT_EQ(result(shifted)[at], t == 0 ? 0 : x[at - kHeads * kDim]);
                EXPECT_TRUE(near(result(ssd)[at], ssd_sum, 1e-4));
                EXPECT_TRUE(near(result(rwkv6)[at], sum_6, 1e-4));
                EXPECT_TRUE(near(result(rwkv7)[at], sum_7, 1e-4));
                EXPECT_TRUE(near(result(delta)[at], delta_sum, 1e-4));
            }
        }
    }
}

PLAIT_ON_EVERY_ISA(OpsTest);

}  // namespace
}  // namespace plait::cpu
