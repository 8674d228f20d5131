// Runs batches over one memory: prepares and splits the batch, places its tokens in the memory,
// runs a plan per microbatch, and commits. Uses memories through the StepMemory interface only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"
#include "runtime/calls.h"
#include "runtime/devices/storage.h"
#include "runtime/step/defragmenter.h"
#include "runtime/step/engine.h"
#include "runtime/step/output_policy.h"
#include "runtime/step/outputs.h"
#include "runtime/step/recorder.h"
#include "runtime/step/row_mover.h"

namespace plait {

class Gradients;

struct StepOptions {
    CallForm form;
    BatchLimits limits;
    SplitPolicy split;
    bool flash = true;
    std::optional<double> defrag_threshold;  // see Defragmenter
};

class StepRunner {
public:
    StepRunner(const ModelInfo& info, std::shared_ptr<StoredMemory> stored, Engine& engine,
               Recorder& recorder, const StepOptions& options);
    // A runner made this way supports only run(): edits, defragmentation and saved states need a
    // StoredMemory.
    StepRunner(const ModelInfo& info, StepMemory& memory, const Storage& storage, Engine& engine,
               Recorder& recorder, const StepOptions& options);
    StepRunner(const StepRunner&) = delete;
    StepRunner& operator=(const StepRunner&) = delete;

    // Computes gradients in later calls while `gradients` is active.
    void attach(Gradients& gradients) { gradients_ = &gradients; }
    // Returns the values of floats that its steps compute, in the order of the graph.
    std::vector<ValueName> gradient_values() const;
    // Throws what Gradients::prepare() throws for these names, with the active steering.
    void check_gradients(std::span<const ValueName> names, std::string_view architecture) const;
    // Runs a batch. If it throws, the memory is as before the call.
    Outputs run(const BatchView& batch, StopSignal* stop);

    const std::shared_ptr<StoredMemory>& stored() const { return stored_; }
    Memory& memory() { return *stored_->memory; }
    const Memory& memory() const { return *stored_->memory; }
    const Storage& storage() const { return plans_.storage(); }

    // Calls change(memory, moves), then copies the rows listed in `moves`. If `change` throws, the
    // memory is unchanged.
    template <typename Change>
    void edit(Change&& change) {
        mover_.prepare();
        std::vector<RowMove> moves;
        change(memory(), moves);
        mover_.copy(moves);
    }
    // Defragments the memory in rounds of at most `max_moves` copies.
    const DefragReport& defragment(int64_t max_moves) {
        return defragmenter_.run(memory(), mover_, max_moves);
    }
    const std::optional<DefragReport>& last_defrag() const { return defragmenter_.last(); }
    // Applies pending key shifts.
    void apply_shifts();
    // Returns the named values that its steps compute.
    std::vector<Engine::ValueInfo> values() const;
    // Returns the weights that adapters can change.
    std::vector<WeightId> adaptable() const;
    bool uses(WeightId weight) const { return plans_.uses(largest_key(), weight); }
    // Returns the plan key of the largest step.
    PlanKey largest_key() const;
    // Returns the plan of a step of that shape; builds it if needed.
    const Plan& plan_of(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                        InputKind input) const;

private:
    PlanKey key_for(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                    InputKind input) const;
    std::span<const Microbatch> split(bool both_directions);
    // Throws if there is no room for the batch and for what apply_shifts() copies.
    void check_room(std::span<const Microbatch> microbatches);
    void write_inputs(const Plan& plan, const Microbatch& microbatch, size_t index);
    void write_output_begin(const Microbatch& microbatch);
    void write_selected(InputId id, std::span<const int32_t> of_tokens,
                        const Microbatch& microbatch);
    void write_attention_inputs(uint8_t group, size_t index);
    bool computes_gradients() const;
    // Writes the scale of an adapter for each row of `extent`, out of `n`, or which rows use it.
    void write_adapter_input(InputId id, const Microbatch& microbatch, size_t n, Extent extent);
    // Writes which row of `extent`, out of `n`, is combined with which row of the edits.
    void write_edit_picks(InputId id, const Microbatch& microbatch, size_t n, Extent extent);
    void run_microbatch(const Microbatch& microbatch, size_t index, Outputs& outputs,
                        StopSignal* stop);

    std::shared_ptr<StoredMemory> stored_;  // null if there is only a StepMemory
    StepMemory& step_memory_;
    Engine& engine_;
    Plans plans_;
    Recorder& recorder_;
    Gradients* gradients_ = nullptr;
    StepOptions options_;
    std::unique_ptr<OutputPolicy> outputs_;
    RowMover mover_;
    Defragmenter defragmenter_;
    PreparedBatch prepared_;
    Split split_;
    std::vector<KeyShift> shifts_;
};

}  // namespace plait
