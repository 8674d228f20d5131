#include "runtime/step/step_runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "runtime/step/gradients.h"
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
    : step_memory_(memory),
      engine_(engine),
      plans_(engine, storage),
      recorder_(recorder),
      options_(options),
      outputs_(make_output_policy(options.form.outputs, info, plans_)),
      mover_(plans_),
      defragmenter_(options.defrag_threshold) {
    plans_.reserve(largest_key());
    PlanKey given_embeddings = largest_key();
    given_embeddings.input = InputKind::embeddings;
    if (options_.form.first_layer == 0) plans_.build(given_embeddings);  // only to grow the arenas
    if (const auto last = outputs_->last_graph()) plans_.reserve(*last);
}

PlanKey StepRunner::largest_key() const {
    PlanKey key;
    key.kind = options_.form.graph;
    key.input = options_.form.input();
    key.output = outputs_->graph_outputs();
    key.causal = options_.form.causal;
    key.flash = options_.flash;
    key.n_tokens = key.n_outputs = engine_.limits().n_tokens;
    key.n_sequences = engine_.limits().n_sequences;
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
    // With one token per sequence, there are as many sequences as tokens. Otherwise one plan serves
    // any number of sequences.
    if (key.single) key.n_sequences = std::min(key.n_tokens, key.n_sequences);
    key.n_outputs = bucket(n_outputs, max_tokens);
    if (key.n_outputs == 0) key.output = OutputKind::none;
    // Captures and edits need the values of all tokens, so that none may be left out.
    key.ordered = key.n_outputs < key.n_tokens && key.captures == 0 && key.edits == 0;
    return key;
}

const Plan& StepRunner::plan_of(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                                InputKind input) const {
    const bool takes_tokens = options_.form.first_layer == 0;
    return plans_.get(
        key_for(n_tokens, n_sequences, n_outputs, takes_tokens ? input : InputKind::embeddings));
}

std::vector<Engine::ValueInfo> StepRunner::values() const { return plans_.values(largest_key()); }

std::vector<WeightId> StepRunner::adaptable() const {
    std::vector<WeightId> weights = plans_.adaptable(largest_key());
    if (const auto last = outputs_->last_graph())
        std::ranges::copy(plans_.adaptable(*last), std::back_inserter(weights));
    return weights;
}

bool StepRunner::computes_gradients() const {
    return gradients_ != nullptr && gradients_->active();
}

std::vector<ValueName> StepRunner::gradient_values() const {
    const Graph graph = plans_.graph(largest_key());
    std::vector<ValueName> names;
    for (const NamedValue& value : named_values(graph))
        if (graph.node(value.node).type.dtype == DType::f32) names.push_back(value.name);
    return names;
}

void StepRunner::check_gradients(std::span<const ValueName> names,
                                 std::string_view architecture) const {
    const uint32_t n = engine_.limits().n_tokens;
    plan_gradients(plans_.graph(key_for(n, 1, n, options_.form.input())), names, architecture);
}

// Attention in both directions needs all entries of a sequence in one microbatch.
std::span<const Microbatch> StepRunner::split(bool both_directions) {
    SplitPolicy policy = options_.split;
    if (!both_directions) return split_.cut(prepared_, policy);
    if (stored_ && memory().layout().has(RecurrentSpec::kind()))
        throw UnsupportedError("both_directions: a recurrent layer cannot see later entries");
    policy.whole_sequences = true;
    const std::span<const Microbatch> microbatches = split_.cut(prepared_, policy);
    const uint32_t n_tokens = engine_.limits().n_tokens;
    for (const Microbatch& microbatch : microbatches)
        if (microbatch.entries.size() > n_tokens)
            throw BatchError(text("both_directions: a sequence has ", microbatch.entries.size(),
                                  " entries, but n_ubatch is ", n_tokens,
                                  "; create the context with a larger n_ubatch"));
    return microbatches;
}

Outputs StepRunner::run(const BatchView& batch, StopSignal* stop) {
    Stats& stats = engine_.stats();
    std::span<const Microbatch> microbatches;
    std::optional<PlacementGuard> placement;
    {
        prepare(outputs_->with_flags(batch), options_.limits,
                step_memory_.sequences(options_.form.step), prepared_);
        const PhaseTimer timed(stats, Phase::place);
        microbatches = split(batch.both_directions);
        if (computes_gradients())
            gradients_->begin(microbatches, outputs_->graph_outputs(), engine_.limits().n_tokens);
        if (step_memory_.has_shifts()) {
            check_room(microbatches);
            apply_shifts();
        }
        if (stored_) defragmenter_.before_step(memory(), mover_, batch.size);
        placement.emplace(step_memory_, options_.form.step, prepared_, microbatches);
    }
    if (log_enabled(LogLevel::trace))
        log(LogLevel::trace, text("decode: ", batch.size, " tokens in ", microbatches.size(),
                                  " microbatches, ", prepared_.n_outputs, " outputs"));
    if (recorder_.active()) recorder_.begin(prepared_);
    Outputs outputs = outputs_->begin(prepared_);
    for (size_t i = 0; i < microbatches.size(); ++i)
        run_microbatch(microbatches[i], i, outputs, stop);
    {
        const PhaseTimer timed(stats, Phase::output);
        outputs_->finish(outputs, stop);
    }
    if (recorder_.active()) recorder_.commit();
    if (computes_gradients()) gradients_->commit();
    placement->commit();
    stats.tokens += batch.size;
    stats.microbatches += microbatches.size();
    return outputs;
}

void StepRunner::run_microbatch(const Microbatch& microbatch, size_t index, Outputs& outputs,
                                StopSignal* stop) {
    Stats& stats = engine_.stats();
    const InputKind input =
        prepared_.source.tokens.empty() ? InputKind::embeddings : InputKind::tokens;
    PlanKey key =
        key_for(microbatch.n_tokens(), microbatch.n_sequences(), microbatch.n_outputs(), input);
    key.ordered =
        key.ordered && !computes_gradients() && std::ranges::is_sorted(microbatch.output_tokens);
    if (computes_gradients()) key = gradients_->prepare(plans_, key);
    Plan& plan = plans_.get(key);
    {
        const PhaseTimer timed(stats, Phase::input);
        write_inputs(plan, microbatch, index);
    }
    const Counts counts{.tokens = static_cast<int32_t>(microbatch.n_tokens()),
                        .outputs = static_cast<int32_t>(microbatch.n_outputs()),
                        .sequences = static_cast<int32_t>(microbatch.n_sequences())};
    const OutputRows rows = outputs_->rows(microbatch, outputs);
    {
        const PhaseTimer timed(stats, Phase::compute);
        MicrobatchEditor editor(engine_.steering().edits(), prepared_, microbatch);
        engine_.run(plan, counts, rows.logits, rows.hidden, stop, &editor);
    }
    const PhaseTimer timed(stats, Phase::output);
    const std::array<const float*, 2> by_id{rows.logits, rows.hidden};
    if (recorder_.active())
        recorder_.add(plan, microbatch, engine_.arenas(), by_id, [&](uint32_t cache) {
            const uint8_t group = plans_.layout().storage[cache].group;
            return MicrobatchKeys{step_memory_.view(group, index), microbatch, plans_.storage()};
        });
    if (computes_gradients()) gradients_->compute(plan, plans_, microbatch, by_id, stop);
    outputs_->add(prepared_, microbatch, outputs);
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
        case InputField::output_begin: write_output_begin(microbatch); break;
        case InputField::output_first:
            write_selected(id, step_memory_.view(group, index).first, microbatch);
            break;
        case InputField::output_last:
            write_selected(id, step_memory_.view(group, index).last, microbatch);
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
        case InputField::adapter_token_scale:
        case InputField::adapter_token_picks:
            write_adapter_input(id, microbatch, microbatch.n_tokens(), Extent::tokens);
            break;
        case InputField::adapter_output_scale:
        case InputField::adapter_output_picks:
            write_adapter_input(id, microbatch, microbatch.n_outputs(), Extent::outputs);
            break;
        case InputField::adapter_scale:
        case InputField::control: break;  // written when they were set
        case InputField::edit_rows: engine_.write_edit_rows(); break;
        case InputField::edit_picks:
            write_edit_picks(id, microbatch, microbatch.n_tokens(), Extent::tokens);
            break;
        case InputField::edit_output_picks:
            write_edit_picks(id, microbatch, microbatch.n_outputs(), Extent::outputs);
            break;
        case InputField::from_rows:
        case InputField::to_rows:
        case InputField::deltas: throw InternalError("a decode plan has inputs for row moves");
        }
    }
}

// Writes the first output of each sequence. The outputs are in the order of the tokens.
void StepRunner::write_output_begin(const Microbatch& microbatch) {
    const InputId id{InputField::output_begin};
    const std::span<int32_t> to = engine_.in_place<int32_t>(id, microbatch.begin.size());
    for (size_t s = 0; s < to.size(); ++s)
        to[s] = static_cast<int32_t>(
            std::ranges::lower_bound(microbatch.output_tokens, microbatch.begin[s]) -
            microbatch.output_tokens.begin());
}

// Writes the values of the tokens that are outputs.
void StepRunner::write_selected(InputId id, std::span<const int32_t> of_tokens,
                                const Microbatch& microbatch) {
    const std::span<int32_t> to = engine_.in_place<int32_t>(id, microbatch.n_outputs());
    for (size_t i = 0; i < to.size(); ++i)
        to[i] = of_tokens[static_cast<size_t>(microbatch.output_tokens[i])];
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

void StepRunner::write_edit_picks(InputId id, const Microbatch& microbatch, size_t n,
                                  Extent extent) {
    const EditPlan& edits = engine_.steering().edits();
    const std::span<int32_t> picks = engine_.in_place<int32_t>(id, 2 * n);
    for (size_t row = 0; row < n; ++row) {
        const uint32_t entry = entry_of(microbatch, row, extent);
        edits.pick(id.group, prepared_.sequences_of(entry), prepared_.position(entry),
                   picks.data() + 2 * row);
    }
}

void StepRunner::write_adapter_input(InputId id, const Microbatch& microbatch, size_t n,
                                     Extent extent) {
    const auto sequences_of = [&](size_t row) {
        return prepared_.sequences_of(entry_of(microbatch, row, extent));
    };
    engine_.write_adapter_rows(id, n, std::cref(sequences_of));  // does not allocate
}

void StepRunner::check_room(std::span<const Microbatch> microbatches) {
    const PlacementGuard trial(step_memory_, options_.form.step, prepared_, microbatches);
    if (stored_) memory().check_kept_shifts();
}

void StepRunner::apply_shifts() {
    if (!step_memory_.has_shifts()) return;
    mover_.prepare();
    if (stored_ && memory().n_transactions() > 0)
        edit(
            [](Memory& memory, std::vector<RowMove>& moves) { memory.replace_kept_shifts(moves); });
    shifts_.clear();
    step_memory_.take_shifts(shifts_);
    mover_.rotate(shifts_);
}

}  // namespace plait
