#include "runtime/step/step_runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "runtime/step/microbatch_editor.h"

namespace plait {
namespace {

using Clock = std::chrono::steady_clock;

// Adds its lifetime to the time of a phase.
class PhaseTimer {
public:
    PhaseTimer(Stats& stats, Phase phase) : seconds_(stats.seconds[static_cast<size_t>(phase)]) {}
    ~PhaseTimer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
    PhaseTimer(const PhaseTimer&) = delete;
    PhaseTimer& operator=(const PhaseTimer&) = delete;

private:
    double& seconds_;
    Clock::time_point start_ = Clock::now();
};

// Places a batch, and rolls it back on destruction unless it was committed.
class PlacementGuard {
public:
    PlacementGuard(StepMemory& memory, StepKind kind, const PreparedBatch& batch,
                   std::span<const Microbatch> microbatches)
        : memory_(memory) {
        memory_.place(kind, batch, microbatches);
    }
    ~PlacementGuard() {
        if (!committed_) memory_.rollback();
    }
    PlacementGuard(const PlacementGuard&) = delete;
    PlacementGuard& operator=(const PlacementGuard&) = delete;
    void commit() noexcept {
        memory_.commit();
        committed_ = true;
    }

private:
    StepMemory& memory_;
    bool committed_ = false;
};

}  // namespace

StepRunner::StepRunner(const ModelInfo& info, std::shared_ptr<StoredMemory> stored, Engine& engine,
                       Recorder& recorder, const StepOptions& options)
    : StepRunner(info, *stored->memory, stored->storage, engine, recorder, options) {
    stored_ = std::move(stored);
}

StepRunner::StepRunner(const ModelInfo& info, StepMemory& memory, const Storage& storage,
                       Engine& engine, Recorder& recorder, const StepOptions& options)
    : info_(info),
      step_memory_(memory),
      storage_(storage),
      engine_(engine),
      recorder_(recorder),
      options_(options),
      mover_(engine, memory.layout(), storage.buffers()),
      defragmenter_(options.defrag_threshold) {
    if (pooled())
        hidden_.resize(size_t{engine.limits().n_tokens} * static_cast<size_t>(info.width));
    engine_.reserve(largest_key(), step_memory_.layout(), storage_.buffers());
    PlanKey given_embeddings = largest_key();
    given_embeddings.input = InputKind::embeddings;
    engine_.build(given_embeddings, step_memory_.layout(),
                  storage_.buffers());  // only to grow the arenas
    if (scored())
        engine_.reserve(score_key(engine_.limits().n_tokens), step_memory_.layout(),
                        storage_.buffers());
}

OutputKind StepRunner::output_kind() const {
    if (pooled() || !options_.logits)
        return options_.embeddings ? OutputKind::embeddings : OutputKind::none;
    return options_.embeddings ? OutputKind::both : OutputKind::logits;
}

PlanKey StepRunner::largest_key() const {
    PlanKey key;
    key.kind = options_.kind;
    key.output = output_kind();
    key.causal = options_.causal;
    key.flash = options_.flash;
    key.n_tokens = key.n_outputs = engine_.limits().n_tokens;
    key.n_sequences = engine_.limits().n_sequences;
    return key;
}

PlanKey StepRunner::score_key(uint32_t n) const {
    PlanKey key;
    key.kind = GraphKind::score;
    key.input = InputKind::embeddings;
    key.output = OutputKind::embeddings;
    key.adapters = engine_.steering().adapter_set();
    key.n_tokens = key.n_outputs = bucket(n, engine_.limits().n_tokens);
    return key;
}

PlanKey StepRunner::key_for(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                            InputKind input) const {
    PlanKey key = largest_key();
    const uint32_t max_tokens = engine_.limits().n_tokens;
    key.input = input;
    key.captures = recorder_.set();
    engine_.steering().set_fields(key);
    key.single = n_tokens == n_sequences;
    key.n_tokens = bucket(n_tokens, max_tokens);
    // With one token per sequence, there are as many sequences as tokens. Otherwise one plan serves any
    // number of sequences.
    if (key.single) key.n_sequences = std::min(key.n_tokens, key.n_sequences);
    key.n_outputs = bucket(n_outputs, max_tokens);
    if (key.n_outputs == 0) key.output = OutputKind::none;
    return key;
}

const Plan& StepRunner::plan_of(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                                InputKind input) {
    return plan_of(key_for(n_tokens, n_sequences, n_outputs, input));
}

std::vector<Engine::ValueInfo> StepRunner::values() const {
    return engine_.values(largest_key(), step_memory_.layout());
}

std::vector<WeightId> StepRunner::adaptable() const {
    std::vector<WeightId> weights = engine_.adaptable(largest_key(), step_memory_.layout());
    if (scored())
        std::ranges::copy(engine_.adaptable(score_key(1), step_memory_.layout()),
                          std::back_inserter(weights));
    return weights;
}

Outputs StepRunner::run(const BatchView& batch, StopSignal* stop) {
    Stats& stats = engine_.stats();
    std::span<const Microbatch> microbatches;
    std::optional<PlacementGuard> placement;
    BatchView requested = batch;
    if (pooled()) {  // pooling needs every token, regardless of the output flags
        all_outputs_.assign(batch.size, 1);
        requested.wants = all_outputs_;
    }
    {
        prepare(requested, options_.limits, step_memory_.sequences(options_.step), prepared_);
        apply_shifts();
        const PhaseTimer timed(stats, Phase::place);
        if (stored_) defragmenter_.before_step(memory(), mover_, batch.size);
        microbatches = split_.cut(prepared_, options_.split);
        placement.emplace(step_memory_, options_.step, prepared_, microbatches);
    }
    if (log_enabled(LogLevel::trace))
        log(LogLevel::trace, text("decode: ", batch.size, " tokens in ", microbatches.size(),
                                  " microbatches, ", prepared_.n_outputs, " outputs"));
    if (recorder_.active()) recorder_.begin(prepared_);
    Outputs outputs;
    if (pooled())
        embedding_pool_.start(scored() ? info_.scored : options_.pooling, prepared_, info_.width);
    else
        outputs =
            Outputs(engine_.outputs(), prepared_.n_outputs, options_.logits ? info_.n_vocab : 0,
                    options_.embeddings ? info_.width : 0);
    for (size_t i = 0; i < microbatches.size(); ++i)
        run_microbatch(microbatches[i], i, outputs, stop);
    {
        const PhaseTimer timed(stats, Phase::output);
        if (pooled()) {
            outputs = pooled_outputs(stop);
        } else if (options_.split.whole_sequences) {
            restore_batch_order(outputs);
        }
    }
    if (recorder_.active()) recorder_.commit();
    placement->commit();
    stats.tokens += batch.size;
    stats.microbatches += microbatches.size();
    return outputs;
}

Outputs StepRunner::pooled_outputs(StopSignal* stop) {
    const size_t n = embedding_pool_.n_sequences();
    const auto width = static_cast<size_t>(info_.width);
    const auto n_scores = static_cast<size_t>(info_.n_scores);
    Outputs outputs(engine_.outputs(), static_cast<int64_t>(n), 0,
                    scored() ? info_.n_scores : info_.width);
    if (!scored()) {
        embedding_pool_.finish(outputs.embeddings(), outputs.indices());
        return outputs;
    }
    pooled_.resize(n * width);
    embedding_pool_.finish(pooled_, outputs.indices());
    const size_t max_tokens = engine_.limits().n_tokens;
    for (size_t first = 0; first < n; first += max_tokens) {
        const size_t count = std::min(max_tokens, n - first);
        engine_.write(InputId{InputField::embeddings},
                      std::span<const float>(pooled_).subspan(first * width, count * width));
        const auto rows = static_cast<int32_t>(count);
        engine_.run(plan_of(score_key(static_cast<uint32_t>(count))),
                    {.tokens = rows, .outputs = rows}, nullptr,
                    outputs.embeddings().data() + first * n_scores, stop);
    }
    return outputs;
}

void StepRunner::run_microbatch(const Microbatch& microbatch, size_t index, Outputs& outputs,
                                StopSignal* stop) {
    Stats& stats = engine_.stats();
    const InputKind input =
        prepared_.source.tokens.empty() ? InputKind::embeddings : InputKind::tokens;
    Plan& plan = plan_of(
        key_for(microbatch.n_tokens(), microbatch.n_sequences(), microbatch.n_outputs(), input));
    {
        const PhaseTimer timed(stats, Phase::input);
        write_inputs(plan, microbatch, index);
    }
    const Counts counts{.tokens = static_cast<int32_t>(microbatch.n_tokens()),
                        .outputs = static_cast<int32_t>(microbatch.n_outputs()),
                        .sequences = static_cast<int32_t>(microbatch.n_sequences())};
    const size_t first = microbatch.first_output;
    float* logits = !outputs.has_logits()
                        ? nullptr
                        : outputs.logits().data() + first * static_cast<size_t>(info_.n_vocab);
    float* hidden = pooled() ? hidden_.data()
                    : options_.embeddings
                        ? outputs.embeddings().data() + first * static_cast<size_t>(info_.width)
                        : nullptr;
    {
        const PhaseTimer timed(stats, Phase::compute);
        MicrobatchEditor editor(engine_.steering(), microbatch);
        engine_.run(plan, counts, logits, hidden, stop, &editor);
    }
    const PhaseTimer timed(stats, Phase::output);
    if (recorder_.active())
        recorder_.add(plan, microbatch, engine_.arenas(),
                      std::array<const float*, 2>{logits, hidden});
    if (pooled()) {
        embedding_pool_.add(
            prepared_, microbatch,
            std::span(hidden_).first(microbatch.n_outputs() * static_cast<size_t>(info_.width)));
        return;
    }
    const std::span<int32_t> indices = outputs.indices();
    for (size_t i = 0; i < microbatch.output_tokens.size(); ++i)
        indices[first + i] = static_cast<int32_t>(
            microbatch.entries[static_cast<size_t>(microbatch.output_tokens[i])]);
}

void StepRunner::write_inputs(const Plan& plan, const Microbatch& microbatch, size_t index) {
    const auto axes = static_cast<size_t>(prepared_.axes);
    const size_t n = microbatch.entries.size();
    uint32_t groups = 0;  // bit g: the attention inputs of group g are written
    for (const InputId id : plan.inputs()) {
        const auto group =
            static_cast<uint8_t>(id.group);  // a group of the memory, for fields that have one
        switch (id.field) {
        case InputField::tokens: {
            const std::span<int32_t> to = engine_.in_place<int32_t>(id, n);
            const std::span<const TokenId> tokens = prepared_.source.tokens;
            for (size_t i = 0; i < n; ++i)
                to[i] = tokens.empty() ? 0 : tokens[microbatch.entries[i]];
            break;
        }
        case InputField::embeddings: {
            const auto width = static_cast<size_t>(prepared_.source.width);
            const std::span<float> to = engine_.in_place<float>(id, n * width);
            for (size_t i = 0; i < n; ++i)
                std::copy_n(prepared_.source.embeddings.data() + microbatch.entries[i] * width,
                            width, to.data() + i * width);
            break;
        }
        case InputField::positions: {
            const std::span<int32_t> to = engine_.in_place<int32_t>(id, n * axes);
            for (size_t i = 0; i < n; ++i)
                std::copy_n(prepared_.positions.data() + microbatch.entries[i] * axes, axes,
                            to.data() + i * axes);
            break;
        }
        case InputField::token_begin: engine_.write(id, std::span(microbatch.begin)); break;
        case InputField::output_tokens:
            engine_.write(id, std::span(microbatch.output_tokens));
            break;
        case InputField::write_rows:
        case InputField::first:
        case InputField::last:
        case InputField::runs:
        case InputField::run_begin:
        case InputField::key_positions:
        case InputField::key_begin:
            if ((groups >> group & 1) == 0) write_attention_inputs(group, index);
            groups |= 1u << group;
            break;
        case InputField::read_states:
            engine_.write(id, step_memory_.view(group, index).read_rows);
            break;
        case InputField::write_states:
            engine_.write(id, step_memory_.view(group, index).write_rows);
            break;
        case InputField::adapter_scale:
        case InputField::control: break;  // written when they were set
        case InputField::from_rows:
        case InputField::to_rows:
        case InputField::deltas: throw InternalError("a decode plan has inputs for row moves");
        }
    }
}

void StepRunner::write_attention_inputs(uint8_t group, size_t index) {
    const GroupView view = step_memory_.view(group, index);
    engine_.write(InputId{InputField::write_rows, group}, view.write_rows);
    engine_.write(InputId{InputField::runs, group}, view.runs);
    engine_.write(InputId{InputField::run_begin, group}, view.run_begin);
    engine_.write(InputId{InputField::first, group}, view.first);
    engine_.write(InputId{InputField::last, group}, view.last);
    if (!step_memory_.layout().groups[group].needs_key_positions) return;
    engine_.write(InputId{InputField::key_positions, group}, view.key_positions);
    engine_.write(InputId{InputField::key_begin, group}, view.key_begin);
}

void StepRunner::restore_batch_order(Outputs& outputs) {
    const std::span<const int32_t> indices = outputs.indices();
    if (std::ranges::is_sorted(indices)) return;
    std::vector<size_t> order(indices.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t row) { return indices[row]; });
    Outputs sorted(engine_.outputs(), outputs.rows(), outputs.n_vocab(), outputs.width());
    const auto copy_row = [](std::span<const float> from, std::span<float> to, size_t a, size_t b,
                             size_t width) {
        std::copy_n(from.data() + a * width, width, to.data() + b * width);
    };
    for (size_t row = 0; row < order.size(); ++row) {
        sorted.indices()[row] = indices[order[row]];
        copy_row(outputs.logits(), sorted.logits(), order[row], row,
                 static_cast<size_t>(outputs.n_vocab()));
        copy_row(outputs.embeddings(), sorted.embeddings(), order[row], row,
                 static_cast<size_t>(outputs.width()));
    }
    outputs = std::move(sorted);
}

void StepRunner::apply_shifts() {
    if (!step_memory_.has_shifts()) return;
    mover_.prepare();
    shifts_.clear();
    step_memory_.take_shifts(shifts_);
    mover_.rotate(shifts_);
}

}  // namespace plait
