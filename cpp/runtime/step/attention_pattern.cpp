#include "runtime/step/attention_pattern.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <map>

#include "backend/shared/positions.h"
#include "base/error.h"

namespace plait {
namespace {

std::optional<uint32_t> cache_of(const Graph& graph, NodeId keys) {
    if (const auto* stored = std::get_if<ops::StoreRows>(&graph.node(keys).op))
        keys = stored->storage;
    if (const auto* storage = std::get_if<ops::Storage>(&graph.node(keys).op))
        return storage->index;
    return std::nullopt;
}

WeightId weight_of(const Graph& graph, const OptionalOperand& operand) {
    if (!operand) return Weight::kNone;
    const auto* weight = std::get_if<ops::Weight>(&graph.node(*operand).op);
    return weight ? weight->id : Weight::kNone;
}

// Returns the layer whose heads node `id` computes. Edits and the inverse of the Hadamard transform
// of values may follow it before the node with the name.
std::optional<int> named_layer(const Graph& graph, NodeId id) {
    for (NodeId i = id; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        const auto follows = [id]<typename T>(const T& op) {
            if constexpr (std::same_as<T, ops::Edit> || std::same_as<T, ops::EditRows> ||
                          std::same_as<T, ops::Hadamard>)
                return op.x == id;
            return false;
        };
        if (i != id && !std::visit(follows, node.op)) continue;
        if (node.role == Role::attn_heads) return node.layer;
        id = i;
    }
    return std::nullopt;
}

}  // namespace

std::vector<PatternSource> pattern_sources(const Graph& graph, const MemoryLayout& layout) {
    std::vector<PatternSource> sources;
    std::map<int, uint16_t> known;  // number of sources by layer
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        const auto* attend = std::get_if<ops::Attend>(&node.op);
        if (attend == nullptr) continue;
        const std::optional<uint32_t> keys = cache_of(graph, attend->keys);
        if (!keys) continue;
        PatternSource source{.queries = attend->q, .keys = *keys, .params = attend->params};
        if (const auto* spread = std::get_if<ops::Hadamard>(&graph.node(attend->q).op))
            source.queries = spread->x;
        source.sinks = weight_of(graph, attend->sinks);
        source.bias = weight_of(graph, attend->bias);
        // A layer that reads the keys of another has a name of its own.
        const int layer = named_layer(graph, i).value_or(layout.storage[*keys].id.layer);
        source.name = {Role::attn_pattern, static_cast<int16_t>(layer), known[layer]++};
        sources.push_back(source);
    }
    return sources;
}

void capture_queries(Graph& graph, std::span<const ValueName> names, const MemoryLayout& layout) {
    for (const PatternSource& source : pattern_sources(graph, layout)) {
        const auto found = std::ranges::find(names, source.name);
        if (found == names.end()) continue;
        const auto index = static_cast<size_t>(found - names.begin());
        graph.output(captured(index), {&graph, source.queries});
    }
}

AttentionPattern::AttentionPattern(const PatternSource& source,
                                   const std::function<std::vector<float>(WeightId)>& weight)
    : source_(source) {
    const AttendParams& params = source_.params;
    if (source_.sinks != Weight::kNone) sinks_ = weight(source_.sinks);
    if (params.bias != PositionBias::buckets) return;
    const std::vector<float> table = weight(source_.bias);  // [buckets, n_heads]
    const int n_buckets = static_cast<int>(table.size()) / params.n_heads;
    const int buckets = params.both_directions ? n_buckets / 2 : n_buckets;
    const int width = 2 * params.max_distance + 1;
    biases_.resize(static_cast<size_t>(params.n_heads * width));
    for (int head = 0; head < params.n_heads; ++head) {
        const auto of = [&](int bucket) {
            return table[static_cast<size_t>(bucket * params.n_heads + head)];
        };
        float* middle = biases_.data() + head * width + params.max_distance;
        for_each_distance(buckets, params.max_distance, [&](int32_t distance, int32_t bucket) {
            middle[distance] = of(params.both_directions ? buckets + bucket : 0);
            middle[-distance] = of(bucket);  // also for distance 0
        });
    }
}

float AttentionPattern::bias(int head, int32_t distance) const {
    const AttendParams& params = source_.params;
    if (params.bias == PositionBias::alibi)
        return -alibi_slope(params.max_bias, head, params.n_heads) *
               static_cast<float>(std::abs(distance));
    if (params.bias == PositionBias::none) return 0.0f;
    const int clamped = std::clamp(distance, -params.max_distance, params.max_distance);
    const int width = 2 * params.max_distance + 1;
    return biases_[static_cast<size_t>(head * width + params.max_distance + clamped)];
}

std::vector<float> AttentionPattern::weights(const MicrobatchKeys& keys, size_t token,
                                             Position position,
                                             std::span<const float> queries) const {
    const AttendParams& params = source_.params;
    const std::vector<int32_t>& begin = keys.microbatch.begin;
    const auto sequence = static_cast<size_t>(
        std::ranges::upper_bound(begin, static_cast<int32_t>(token)) - begin.begin() - 1);
    const int32_t first = keys.view.first[token], last = keys.view.last[token];
    const auto n_keys = static_cast<size_t>(std::max(0, last - first));
    const StorageInfo& info = keys.storage.layout().storage[source_.keys];
    const auto dim = static_cast<size_t>(params.key_dim);
    const auto stored = static_cast<size_t>(info.head_dim);
    std::vector<float> row(static_cast<size_t>(info.n_heads) * stored);
    std::vector<float> result(static_cast<size_t>(params.n_heads) * n_keys);
    const auto begin_run = static_cast<size_t>(keys.view.run_begin[sequence]);
    const auto end_run = static_cast<size_t>(keys.view.run_begin[sequence + 1]);
    for (const Run& run : keys.view.runs.subspan(begin_run, end_run - begin_run)) {
        for (int32_t i = 0; i < run.count; ++i) {
            const int32_t key = run.first_key + i;
            if (key < first || key >= last) continue;
            keys.storage.read_row(info, source_.keys, run.row + i, row.data());
            int32_t distance = 0;
            if (params.bias != PositionBias::none)
                distance =
                    keys.view
                        .key_positions[static_cast<size_t>(keys.view.key_begin[sequence] + key)] -
                    position;
            for (int h = 0; h < params.n_heads; ++h) {
                const int kv = h / (params.n_heads / params.n_kv_heads);
                const float* q = queries.data() + static_cast<size_t>(h) * dim;
                const float* k = row.data() + static_cast<size_t>(kv) * stored;
                double dot = 0.0;
                for (size_t c = 0; c < dim; ++c) dot += double{q[c]} * double{k[c]};
                auto score = params.scale * static_cast<float>(dot);
                if (params.softcap != 0.0f)
                    score = params.softcap * std::tanh(score / params.softcap);
                result[static_cast<size_t>(h) * n_keys + static_cast<size_t>(key - first)] =
                    score + bias(h, distance);
            }
        }
    }
    for (size_t h = 0; h < static_cast<size_t>(params.n_heads); ++h) {
        const std::span scores = std::span(result).subspan(h * n_keys, n_keys);
        if (scores.empty()) continue;
        float largest = std::ranges::max(scores);
        if (!sinks_.empty()) largest = std::max(largest, sinks_[h]);
        double sum = sinks_.empty() ? 0.0 : std::exp(double{sinks_[h]} - largest);
        for (float& score : scores) sum += score = std::exp(score - largest);
        for (float& score : scores) score = static_cast<float>(score / sum);
    }
    return result;
}

}  // namespace plait
