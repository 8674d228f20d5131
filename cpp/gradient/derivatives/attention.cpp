// The derivative of attention. Softmax weights are computed again from the queries and from the
// keys in the cache, which are those that the step has read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "gradient/derivatives/derivatives.h"
#include "tensor/run.h"

namespace plait::gradient {
namespace {

constexpr size_t kRunFields = sizeof(Run) / sizeof(int32_t);

// Keys or values that a cache holds, and the gradient of those that this step has written.
struct Cached {
    uint32_t storage = 0;
    size_t width = 0;           // floats of a row: heads * head_dim
    std::span<float> gradient;  // [n_tokens, width]; empty: none flows
    std::vector<float> rows;    // [n_keys, width], of one sequence
    float* gradient_of(int32_t token) const {
        return gradient.empty() || token < 0 ? nullptr
                                             : gradient.data() + static_cast<size_t>(token) * width;
    }
};

const ops::StoreRows* store_of(const Graph& graph, NodeId id) {
    const auto* store = std::get_if<ops::StoreRows>(&graph.node(id).op);
    if (!store || !std::holds_alternative<ops::Storage>(graph.node(store->storage).op))
        return nullptr;
    return store;
}

bool is_cache(const Graph& graph, NodeId id) {
    return store_of(graph, id) || std::holds_alternative<ops::Storage>(graph.node(id).op);
}

class AttendBackward {
public:
    AttendBackward(const ops::Attend& op, Gradient dy, Walk& walk)
        : op_(op),
          p_(op.params),
          dy_(dy),
          walk_(walk),
          q_(walk.value(op.q)),
          dq_(walk.gradient(op.q)),
          sinks_(op.sinks ? walk.value(*op.sinks) : std::span<const float>{}),
          keys_(open(op.keys, p_.key_dim)) {
        if (op.values) values_ = open(*op.values, p_.value_dim);
    }

    void run() {
        const std::span<const int32_t> begin = walk_.integers(op_.token_begin);
        const int64_t n_tokens = walk_.rows(op_.q);
        for (size_t s = 0; begin[s] < n_tokens; ++s) {
            read_keys(s);
            for (int32_t t = begin[s]; t < begin[s + 1]; ++t)
                for (int h = 0; h < p_.n_heads; ++h) run_head(static_cast<size_t>(t), h);
        }
    }

private:
    Cached open(NodeId id, int head_dim) {
        Cached cached;
        cached.width = static_cast<size_t>(p_.n_kv_heads) * static_cast<size_t>(head_dim);
        NodeId storage = id;
        if (const auto* store = std::get_if<ops::StoreRows>(&walk_.node(id).op)) {
            storage = store->storage;
            cached.gradient = walk_.gradient(id);
            if (writers_.empty()) {
                const std::span<const int32_t> rows = walk_.integers(store->rows);
                for (int32_t t = 0; t < walk_.rows(id); ++t) {
                    const auto row = static_cast<size_t>(rows[static_cast<size_t>(t)]);
                    if (row >= writers_.size()) writers_.resize(row + 1, -1);
                    writers_[row] = t;
                }
            }
        }
        cached.storage = std::get<ops::Storage>(walk_.node(storage).op).index;
        return cached;
    }

    // Reads the keys and values of one sequence.
    void read_keys(size_t sequence) {
        const std::span<const int32_t> run_begin = walk_.integers(op_.run_begin);
        const std::span<const int32_t> runs = walk_.integers(op_.runs);
        rows_.clear();
        for (int32_t r = run_begin[sequence]; r < run_begin[sequence + 1]; ++r) {
            Run run;
            std::memcpy(static_cast<void*>(&run), runs.data() + static_cast<size_t>(r) * kRunFields,
                        sizeof run);
            rows_.resize(std::max(rows_.size(), static_cast<size_t>(run.first_key + run.count)));
            std::iota(rows_.begin() + run.first_key, rows_.begin() + run.first_key + run.count,
                      run.row);
        }
        for (Cached* cached : {&keys_, &values_}) {
            cached->rows.resize(rows_.size() * cached->width);
            for (size_t j = 0; j < rows_.size() && cached->width > 0; ++j)
                walk_.step().read_cache(
                    cached->storage, rows_[j],
                    std::span(cached->rows).subspan(j * cached->width, cached->width));
        }
    }

    // The token of this step that wrote the j-th key of the sequence; -1 if an earlier call did.
    int32_t writer(size_t j) const {
        const auto row = static_cast<size_t>(rows_[j]);
        return row < writers_.size() ? writers_[row] : -1;
    }

    // The offset of a query head's key or value in a row.
    size_t offset(int head, int head_dim) const {
        return static_cast<size_t>(head / (p_.n_heads / p_.n_kv_heads)) *
               static_cast<size_t>(head_dim);
    }

    // Computes the softmax weights of the keys [first, last) of one head, and the derivative of
    // each capped score with respect to the product of query and key.
    void weigh(const float* q, size_t first, size_t last, int head) {
        const auto n = last - first, key_dim = static_cast<size_t>(p_.key_dim);
        weights_.resize(n);
        slopes_.assign(n, p_.scale);
        double max = sinks_.empty() ? -INFINITY : sinks_[static_cast<size_t>(head)];
        for (size_t j = 0; j < n; ++j) {
            const float* k =
                keys_.rows.data() + (first + j) * keys_.width + offset(head, p_.key_dim);
            double score = 0.0;
            for (size_t i = 0; i < key_dim; ++i) score += double{q[i]} * k[i];
            score *= p_.scale;
            if (p_.softcap != 0.0f) {
                const double t = std::tanh(score / p_.softcap);
                score = p_.softcap * t;
                slopes_[j] *= 1.0 - t * t;
            }
            weights_[j] = score;
            max = std::max(max, score);
        }
        double sum = sinks_.empty() ? 0.0 : std::exp(sinks_[static_cast<size_t>(head)] - max);
        for (double& weight : weights_) sum += weight = std::exp(weight - max);
        for (double& weight : weights_) weight /= sum;
    }

    void run_head(size_t token, int head) {
        const auto key_dim = static_cast<size_t>(p_.key_dim),
                   value_dim = static_cast<size_t>(p_.value_dim);
        const size_t row = token * static_cast<size_t>(p_.n_heads) + static_cast<size_t>(head);
        const float* dy = dy_.data() + row * value_dim;
        if (std::all_of(dy, dy + value_dim, [](float g) { return g == 0.0f; })) return;
        const auto first = static_cast<size_t>(walk_.integers(op_.first)[token]);
        const auto last = static_cast<size_t>(walk_.integers(op_.last)[token]);
        const float* q = q_.data() + row * key_dim;
        weigh(q, first, last, head);

        // Without values of their own, the first value_dim elements of a key are its value.
        const Cached& values = op_.values ? values_ : keys_;
        const size_t value_at = offset(head, op_.values ? p_.value_dim : p_.key_dim);
        slopes_of_weights_.resize(weights_.size());
        double mean = 0.0;
        for (size_t j = 0; j < weights_.size(); ++j) {
            const float* v = values.rows.data() + (first + j) * values.width + value_at;
            double product = 0.0;
            for (size_t i = 0; i < value_dim; ++i) product += double{dy[i]} * v[i];
            slopes_of_weights_[j] = product;
            mean += weights_[j] * product;
        }
        for (size_t j = 0; j < weights_.size(); ++j) {
            const int32_t by = writer(first + j);
            if (float* dv = values.gradient_of(by))
                for (size_t i = 0; i < value_dim; ++i)
                    dv[value_at + i] += static_cast<float>(weights_[j] * dy[i]);
            const double ds = weights_[j] * (slopes_of_weights_[j] - mean) * slopes_[j];
            const size_t key_at = offset(head, p_.key_dim);
            const float* k = keys_.rows.data() + (first + j) * keys_.width + key_at;
            if (!dq_.empty())
                for (size_t i = 0; i < key_dim; ++i)
                    dq_[row * key_dim + i] += static_cast<float>(ds * k[i]);
            if (float* dk = keys_.gradient_of(by))
                for (size_t i = 0; i < key_dim; ++i)
                    dk[key_at + i] += static_cast<float>(ds * q[i]);
        }
    }

    const ops::Attend& op_;
    const AttendParams& p_;
    Gradient dy_;
    Walk& walk_;
    std::span<const float> q_;
    std::span<float> dq_;
    std::span<const float> sinks_;
    std::vector<int32_t> writers_;  // by cache row: the token of this step that wrote it, or -1
    Cached keys_, values_;
    std::vector<int32_t> rows_;  // cache rows of the sequence, in the order of its keys
    std::vector<double> weights_, slopes_, slopes_of_weights_;  // by key of one head
};

}  // namespace

const char* Derivative<ops::Attend>::refusal(const ops::Attend& op, const Graph& graph) {
    if (op.params.bias != PositionBias::none) return "with a bias by position";
    if (!is_cache(graph, op.keys) || (op.values && !is_cache(graph, *op.values)))
        return "over keys that are not stored";
    return nullptr;
}

void Derivative<ops::Attend>::backward(const ops::Attend& op, NodeId, Gradient dy, Walk& walk) {
    AttendBackward(op, dy, walk).run();
}

}  // namespace plait::gradient
