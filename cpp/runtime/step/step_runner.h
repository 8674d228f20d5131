// Runs batches over one memory: prepares and splits the batch, places its tokens in the memory, runs a
// plan per microbatch, and commits. Uses memories through the StepMemory interface only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"
#include "runtime/devices/storage.h"
#include "runtime/step/calls.h"
#include "runtime/step/defragmenter.h"
#include "runtime/step/engine.h"
#include "runtime/step/outputs.h"
#include "runtime/step/pool_embeddings.h"
#include "runtime/step/recorder.h"
#include "runtime/step/row_mover.h"

namespace plait {

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
    // Supports run() only: edits, defragmentation and saved states need a StoredMemory.
    StepRunner(const ModelInfo& info, StepMemory& memory, const Storage& storage, Engine& engine,
               Recorder& recorder, const StepOptions& options);

    // Runs a batch. If it throws, the memory is as before the call.
    Outputs run(const BatchView& batch, StopSignal* stop);

    const std::shared_ptr<StoredMemory>& stored() const { return stored_; }
    Memory& memory() { return *stored_->memory; }
    const Memory& memory() const { return *stored_->memory; }
    const Storage& storage() const { return storage_; }

    // Calls change(memory, moves), then copies the rows listed in `moves`. If `change` throws, the memory
    // is unchanged.
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
    // Returns the plan key of the largest step.
    PlanKey largest_key() const;
    // Returns the plan of a step of that shape; builds it if needed.
    const Plan& plan_of(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                        InputKind input);

private:
    PlanKey key_for(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                    InputKind input) const;
    void write_inputs(const Plan& plan, const Microbatch& microbatch, size_t index);
    void write_attention_inputs(uint8_t group, size_t index);
    // Returns the pooled embeddings of the call's sequences, or their scores for Pooling::rank.
    Outputs pooled_outputs(StopSignal* stop);
    PlanKey score_key(uint32_t n) const;
    void run_microbatch(const Microbatch& microbatch, size_t index, Outputs& outputs,
                        StopSignal* stop);
    void restore_batch_order(Outputs& outputs);
    OutputKind output_kind() const;
    bool pooled() const { return options_.form.outputs.pooling != Pooling::none; }
    bool scored() const { return options_.form.outputs.pooling == Pooling::rank; }
    Plan& plan_of(const PlanKey& key) {
        return engine_.plan(key, step_memory_.layout(), storage_.buffers());
    }

    const ModelInfo& info_;
    std::shared_ptr<StoredMemory> stored_;  // null if there is only a StepMemory
    StepMemory& step_memory_;
    const Storage& storage_;
    Engine& engine_;
    Recorder& recorder_;
    StepOptions options_;
    RowMover mover_;
    Defragmenter defragmenter_;
    PreparedBatch prepared_;
    Split split_;
    EmbeddingPool embedding_pool_;
    std::vector<float> hidden_;         // of one microbatch, if pooled()
    std::vector<float> pooled_;         // pooled rows of a call, if scored()
    std::vector<uint8_t> all_outputs_;  // the output flags of a call, if pooled()
    std::vector<KeyShift> shifts_;
};

}  // namespace plait
