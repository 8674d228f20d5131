// The one way from a batch to its outputs, over one memory: prepare, split, place, then for each
// piece its plan, its inputs and a run, and at last commit. Knows every memory kind by its
// interface alone.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"
#include "runtime/devices/storage.h"
#include "runtime/step/defragmenter.h"
#include "runtime/step/engine.h"
#include "runtime/step/outputs.h"
#include "runtime/step/pool_embeddings.h"
#include "runtime/step/recorder.h"
#include "runtime/step/row_mover.h"

namespace plait {

struct StepOptions {
    GraphKind kind = GraphKind::decode;
    StepKind step = StepKind::decode;  // encode: of an encoder-decoder
    BatchLimits limits;
    SplitPolicy split;
    bool causal = true;
    bool flash = true;
    bool logits = true;                      // of a model that has any
    bool embeddings = false;                 // hand out hidden states too
    Pooling pooling = Pooling::none;         // other than none: one embedding a sequence, no logits
    std::optional<double> defrag_threshold;  // see Defragmenter
};

// A memory and the buffers of its rows. An encoder and its decoder share one.
struct StoredMemory {
    std::unique_ptr<Memory> memory;
    Storage storage;
    StoredMemory(std::unique_ptr<Memory> given, DeviceSet& devices)
        : memory(std::move(given)), storage(memory->layout(), devices) {}
};

class StepRunner {
public:
    StepRunner(const ModelInfo& info, std::shared_ptr<StoredMemory> stored, Engine& engine,
               Recorder& recorder, const StepOptions& options);
    // Steps only: edits, defragmentation and saved states need a StoredMemory.
    StepRunner(const ModelInfo& info, StepMemory& memory, const Storage& storage, Engine& engine,
               Recorder& recorder, const StepOptions& options);

    // All or nothing: on any exception the memory is as before the call.
    Outputs run(const BatchView& batch, StopSignal* stop);

    const std::shared_ptr<StoredMemory>& stored() const { return stored_; }
    Memory& memory() { return *stored_->memory; }
    const Memory& memory() const { return *stored_->memory; }
    const Storage& storage() const { return storage_; }

    // change(memory, moves), and the moves that it asks for. All or nothing, as `change` is.
    template <typename Change>
    void edit(Change&& change) {
        mover_.prepare();
        std::vector<RowMove> moves;
        change(memory(), moves);
        mover_.copy(moves);
    }
    // Moves rows together, in rounds of at most `max_moves`.
    const DefragReport& defragment(int64_t max_moves) {
        return defragmenter_.run(memory(), mover_, max_moves);
    }
    const std::optional<DefragReport>& last_defrag() const { return defragmenter_.last(); }
    // Carries out rotations that are still pending.
    void apply_shifts();
    // The values that its steps compute and name.
    std::vector<Engine::ValueInfo> values() const;
    // The weights that adapters can change.
    std::vector<WeightId> adaptable() const;
    // The key of the largest step.
    PlanKey largest_key() const;
    // The plan of a step of that shape, built if it is not known.
    const Plan& plan_of(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                        InputKind input);

private:
    PlanKey key_for(uint32_t n_tokens, uint32_t n_sequences, uint32_t n_outputs,
                    InputKind input) const;
    void write_inputs(const Plan& plan, const Microbatch& microbatch, size_t index);
    void write_attention_inputs(uint8_t group, size_t index);
    // What pooling made of the call's sequences; scored where that is what was asked for.
    Outputs pooled_outputs(StopSignal* stop);
    PlanKey score_key(uint32_t n) const;
    void run_microbatch(const Microbatch& microbatch, size_t index, Outputs& outputs,
                        StopSignal* stop);
    void restore_batch_order(Outputs& outputs);
    OutputKind output_kind() const;
    bool pooled() const { return options_.pooling != Pooling::none; }
    bool scored() const { return options_.pooling == Pooling::rank; }
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
    std::vector<float> hidden_;         // of one piece, when pooling
    std::vector<float> pooled_;         // of a call's sequences, when scoring
    std::vector<uint8_t> all_outputs_;  // wants of a call, when pooling
    std::vector<KeyShift> shifts_;
};

}  // namespace plait
