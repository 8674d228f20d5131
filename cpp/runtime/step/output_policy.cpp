#include "runtime/step/output_policy.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "runtime/step/engine.h"

namespace plait {
namespace {

// The logits and the hidden state of each output token, in batch order.
class TokenOutputs final : public OutputPolicy {
public:
    TokenOutputs(const OutputChoice& choice, const ModelInfo& model, OutputPool& pool)
        : pool_(pool),
          n_vocab_(choice.logits ? model.n_vocab : 0),
          width_(choice.hidden ? int64_t{model.width} * choice.n_parts : 0) {}

    OutputKind graph_outputs() const override {
        if (n_vocab_ == 0) return width_ == 0 ? OutputKind::none : OutputKind::embeddings;
        return width_ == 0 ? OutputKind::logits : OutputKind::both;
    }
    Outputs begin(const PreparedBatch& batch) override {
        return Outputs(pool_, batch.n_outputs, n_vocab_, width_);
    }
    OutputRows rows(const Microbatch& microbatch, const Outputs& outputs) override {
        const size_t first = microbatch.first_output;
        OutputRows rows;
        if (outputs.has_logits())
            rows.logits = outputs.logits().data() + first * static_cast<size_t>(n_vocab_);
        if (outputs.has_embeddings())
            rows.hidden = outputs.embeddings().data() + first * static_cast<size_t>(width_);
        return rows;
    }
    void add(const PreparedBatch&, const Microbatch& microbatch, Outputs& outputs) override {
        int32_t* index = outputs.indices().data() + microbatch.first_output;
        for (const int32_t token : microbatch.output_tokens)
            *index++ = static_cast<int32_t>(microbatch.entries[static_cast<size_t>(token)]);
    }
    // Microbatches of whole sequences do not follow the order of the batch.
    void finish(Outputs& outputs, StopSignal*) override {
        const std::span<const int32_t> indices = outputs.indices();
        if (std::ranges::is_sorted(indices)) return;
        std::vector<size_t> order(indices.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::ranges::sort(order, {}, [&](size_t row) { return indices[row]; });
        Outputs sorted(pool_, outputs.rows(), outputs.n_vocab(), outputs.width());
        const auto copy_row = [](std::span<const float> from, std::span<float> to, size_t a,
                                 size_t b, size_t width) {
            std::copy_n(from.data() + a * width, width, to.data() + b * width);
        };
        for (size_t row = 0; row < order.size(); ++row) {
            sorted.indices()[row] = indices[order[row]];
            copy_row(outputs.logits(), sorted.logits(), order[row], row,
                     static_cast<size_t>(n_vocab_));
            copy_row(outputs.embeddings(), sorted.embeddings(), order[row], row,
                     static_cast<size_t>(width_));
        }
        outputs = std::move(sorted);
    }

private:
    OutputPool& pool_;
    int64_t n_vocab_;  // 0: no logits
    int64_t width_;    // 0: no hidden states
};

// One embedding per sequence of a call, from the hidden states of its tokens. Rows are summed in
// order of position, so the result does not depend on how a sequence is split into microbatches.
class EmbeddingPool {
public:
    // `kind`: mean, cls (the first token of the call) or last.
    EmbeddingPool(Pooling kind, int64_t width) : kind_(kind), width_(static_cast<size_t>(width)) {}

    void start(const PreparedBatch& batch) {
        sequences_.assign(batch.sequences.begin(), batch.sequences.end());
        std::ranges::sort(sequences_);
        sequences_.erase(std::ranges::unique(sequences_).begin(), sequences_.end());
        slot_of_.assign(static_cast<size_t>(sequences_.back()) + 1, -1);
        for (size_t s = 0; s < sequences_.size(); ++s)
            slot_of_[static_cast<size_t>(sequences_[s])] = static_cast<int32_t>(s);
        sums_.assign(sequences_.size() * width_, 0.0);
        counts_.assign(sequences_.size(), 0);
        last_entries_.assign(sequences_.size(), 0);
    }
    // `hidden`: [n_outputs, width]. Every token must be an output.
    void add(const PreparedBatch& batch, const Microbatch& microbatch, const float* hidden) {
        for (const int32_t token : microbatch.output_tokens) {
            const uint32_t entry = microbatch.entries[static_cast<size_t>(token)];
            for (const SequenceId sequence : batch.sequences_of(entry))
                add(entry, sequence, hidden);
            hidden += width_;
        }
    }
    // Writes the pooled rows in ascending order of sequence id, and the batch entry of the last
    // token of each sequence.
    void finish(std::span<float> rows, std::span<int32_t> last_entries) const {
        PLAIT_CHECK(rows.size() == sums_.size() && last_entries.size() == sequences_.size());
        for (size_t s = 0; s < sequences_.size(); ++s) {
            const double divisor = kind_ == Pooling::mean ? static_cast<double>(counts_[s]) : 1.0;
            for (size_t i = 0; i < width_; ++i)
                rows[s * width_ + i] = static_cast<float>(sums_[s * width_ + i] / divisor);
            last_entries[s] = last_entries_[s];
        }
    }
    size_t n_sequences() const { return sequences_.size(); }
    // The sequences of the pooled rows, in their order.
    std::span<const SequenceId> sequences() const { return sequences_; }

private:
    void add(uint32_t entry, SequenceId sequence, const float* values) {
        const auto s = static_cast<size_t>(slot_of_[static_cast<size_t>(sequence)]);
        double* sum = sums_.data() + s * width_;
        const bool first = counts_[s]++ == 0;
        last_entries_[s] = static_cast<int32_t>(entry);
        if (kind_ == Pooling::mean)
            for (size_t i = 0; i < width_; ++i) sum[i] += static_cast<double>(values[i]);
        else if (kind_ == Pooling::last || first)
            std::copy_n(values, width_, sum);
    }

    Pooling kind_;
    size_t width_;
    std::vector<SequenceId> sequences_;  // ascending
    std::vector<int32_t> slot_of_;       // by sequence id; -1 if absent
    std::vector<double> sums_;           // [n_sequences, width]
    std::vector<int64_t> counts_;        // tokens added so far
    std::vector<int32_t> last_entries_;
};

// One row per sequence: its pooled embedding.
class PooledOutputs : public OutputPolicy {
public:
    PooledOutputs(Pooling kind, const ModelInfo& model, Plans& plans)
        : PooledOutputs(kind, model, plans, model.width) {}

    OutputKind graph_outputs() const override { return OutputKind::embeddings; }
    // Pooling needs every token.
    BatchView with_flags(const BatchView& batch) override {
        all_outputs_.assign(batch.size, 1);
        BatchView result = batch;
        result.wants = all_outputs_;
        return result;
    }
    Outputs begin(const PreparedBatch& batch) override {
        pool_.start(batch);
        return Outputs(plans_.engine().outputs(), static_cast<int64_t>(pool_.n_sequences()), 0,
                       columns_);
    }
    OutputRows rows(const Microbatch&, const Outputs&) override {
        return {.hidden = hidden_.data()};
    }
    void add(const PreparedBatch& batch, const Microbatch& microbatch, Outputs&) override {
        pool_.add(batch, microbatch, hidden_.data());
    }
    void finish(Outputs& outputs, StopSignal*) override {
        pool_.finish(outputs.embeddings(), outputs.indices());
    }

protected:
    PooledOutputs(Pooling kind, const ModelInfo& model, Plans& plans, int64_t columns)
        : plans_(plans),
          pool_(kind, model.width),
          columns_(columns),
          hidden_(size_t{plans.engine().limits().n_tokens} * static_cast<size_t>(model.width)) {}

    Plans& plans_;
    EmbeddingPool pool_;
    int64_t columns_;  // of the outputs

private:
    std::vector<float> hidden_;  // of one microbatch
    std::vector<uint8_t> all_outputs_;
};

// One row per sequence: the scores that the model's head computes from its pooled embedding.
class ScoredOutputs final : public PooledOutputs {
public:
    ScoredOutputs(const ModelInfo& model, Plans& plans)
        : PooledOutputs(model.scored, model, plans, model.n_scores),
          width_(static_cast<size_t>(model.width)) {}

    std::optional<PlanKey> last_graph() const override {
        return key_for(plans_.engine().limits().n_tokens);
    }
    void finish(Outputs& outputs, StopSignal* stop) override {
        Engine& engine = plans_.engine();
        const size_t n = pool_.n_sequences();
        pooled_.resize(n * width_);
        pool_.finish(pooled_, outputs.indices());
        const size_t max_rows = engine.limits().n_tokens;
        for (size_t first = 0; first < n; first += max_rows) {
            const size_t count = std::min(max_rows, n - first);
            Plan& plan = plans_.get(key_for(static_cast<uint32_t>(count)));
            write_adapters(plan, pool_.sequences().subspan(first, count));
            engine.write(InputId{InputField::embeddings},
                         std::span<const float>(pooled_).subspan(first * width_, count * width_));
            const auto rows = static_cast<int32_t>(count);
            engine.run(plan, {.tokens = rows, .outputs = rows}, nullptr,
                       outputs.embeddings().data() + first * static_cast<size_t>(columns_), stop);
        }
    }

private:
    PlanKey key_for(uint32_t n) const {
        const Engine& engine = plans_.engine();
        PlanKey key;
        key.kind = GraphKind::score;
        key.input = InputKind::embeddings;
        key.output = OutputKind::embeddings;
        key.adapters = engine.steering().adapter_set();
        key.n_tokens = key.n_outputs = bucket(n, engine.limits().n_tokens);
        return key;
    }

    // Writes which adapters the sequence of each row uses.
    void write_adapters(const Plan& plan, std::span<const SequenceId> sequences) {
        for (const InputId id : plan.inputs())
            if (id.field == InputField::adapter_token_scale ||
                id.field == InputField::adapter_token_picks)
                plans_.engine().write_adapter_rows(
                    id, sequences.size(), [&](size_t row) { return sequences.subspan(row, 1); });
    }

    size_t width_;
    std::vector<float> pooled_;  // of a call, [n_sequences, width]
};

}  // namespace

std::unique_ptr<OutputPolicy> make_output_policy(const OutputChoice& choice, const ModelInfo& model,
                                                 Plans& plans) {
    switch (choice.pooling) {
    case Pooling::none:
        return std::make_unique<TokenOutputs>(choice, model, plans.engine().outputs());
    case Pooling::rank: return std::make_unique<ScoredOutputs>(model, plans);
    case Pooling::mean:
    case Pooling::cls:
    case Pooling::last: break;
    }
    return std::make_unique<PooledOutputs>(choice.pooling, model, plans);
}

}  // namespace plait
