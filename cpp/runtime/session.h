// A session runs batches through a model and keeps the memory of its sequences. Not thread-safe:
// Context puts a lock in front of it.
//
//   batch -> prepare -> split -> place -> per microbatch (key, plan, inputs, run) -> commit
//         -> outputs
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_set.h"
#include "memory/memory.h"
#include "runtime/context_options.h"
#include "runtime/loaded_model.h"
#include "runtime/state/state_transfer.h"
#include "runtime/step/engine.h"
#include "runtime/step/gradients.h"
#include "runtime/step/outputs.h"
#include "runtime/step/step_runner.h"

namespace plait {

// The capture, the gradients and the edits that the caller has started; edits in the order of their
// start. The context owns them, because the caller may stop them after the session has been closed.
struct Attachments {
    struct Edit {
        uint64_t id;
        ValueName name;
        std::shared_ptr<const ValueEdit> edit;
        int64_t n_experts = 0;  // see NamedEdit
    };
    Recorder recorder;
    Gradients gradients;
    std::vector<Edit> edits;
    uint64_t n_edits = 0;  // edits started so far
};

// A copy of the keys or values of one sequence, ordered by position.
struct SequenceRows {
    std::vector<float> values;  // [n, n_heads, head_dim]
    int64_t n = 0;
    int n_heads = 0;
    int head_dim = 0;
};

// Keys or values given by the caller.
struct GivenRows {
    std::span<const float> values;
    std::vector<int64_t> shape;
};

struct ActiveControl {
    std::string identity;     // in saved states
    std::vector<float> rows;  // [n_layers, width]
};

// If a function throws, the memory is unchanged.
class Session {
public:
    Session(std::shared_ptr<const LoadedModel> model, const ContextSettings& settings,
            Attachments& attachments);

    // Polls `stop`, if given, between nodes on the calling thread, and throws Interrupted on
    // request.
    Outputs decode(const BatchView& batch, StopSignal* stop = nullptr);
    // Decoder-only models: the same computation as decode(), in an empty memory that is discarded.
    // Encoder-decoder models: stores the keys and values that decode() of these sequences attends
    // to. Encoder-only models: the same as decode().
    Outputs encode(const BatchView& batch, StopSignal* stop = nullptr);

    // For queries. Change the memory only through the functions below.
    const Memory& memory() const { return decode_runner_->memory(); }

    // Sequence operations; see KVCache in Python. Ranges are half open.
    bool seq_rm(SequenceId sequence, PositionRange range);
    void seq_cp(SequenceId from, SequenceId to, PositionRange range);
    void seq_keep(SequenceId sequence);
    void seq_add(SequenceId sequence, PositionRange range, int32_t delta);
    void seq_div(SequenceId sequence, PositionRange range, int32_t divisor);
    // Removes a range and moves the later positions back to close the gap.
    void seq_discard(SequenceId sequence, PositionRange range);
    void clear() { decode_runner_->memory().clear(); }
    std::optional<PositionBounds> seq_positions(SequenceId sequence) const;
    // Removes the positions from `next` on, or from an earlier position if the memory cannot roll
    // back to `next`. Returns the position of the next token; later tokens must be decoded again.
    Position rewind(SequenceId sequence, Position next);
    SequenceRows keys(int layer, SequenceId sequence) { return read_rows(layer, sequence, 0); }
    SequenceRows values(int layer, SequenceId sequence) { return read_rows(layer, sequence, 1); }
    // Replaces the keys and values of a layer at these positions of a sequence, in any order. The
    // rows are as keys() and values() return them. Throws InvalidArgument, OutOfRange,
    // UnsupportedError or CacheFull.
    void write(int layer, SequenceId sequence, std::span<const Position> positions,
               const std::optional<GivenRows>& keys, const std::optional<GivenRows>& values);

    // Reserves an empty sequence id that no open handle uses. Throws CacheFull if there is none.
    // The sequence has no adapters and no control vector of its own.
    SequenceId open_sequence();
    // Frees its cells and removes its own adapters and control vector.
    void close_sequence(SequenceId sequence);

    // Transactions; see Memory. `is_owned(id)` tells whether a handle that was open at the
    // beginning owns the id again after a rollback.
    void begin_transaction();
    void commit_transaction() noexcept;
    template <typename IsOwned>
    void roll_back_transaction(IsOwned is_owned) noexcept {
        decode_runner_->memory().roll_back_transaction();
        for (size_t id = 0; id < handles_.size(); ++id)
            handles_[id] = is_owned(static_cast<SequenceId>(id));
        restore_own_changes();
    }

    // Defragments the cache in rounds of at most `max_moves` copies; see Defragmenter.
    DefragReport defrag(std::optional<int64_t> max_moves);
    std::optional<DefragReport> last_defrag() const { return decode_runner_->last_defrag(); }

    // Save and load the state of one sequence or of all as bytes (state_format.h), and copy all of
    // it to another session of the same model. Loading replaces the previous contents. All of them
    // throw StateError.
    void save_state(std::optional<SequenceId> sequence, const ByteSink& sink);
    // `allow` is called before a state of one sequence replaces the sequence that it was saved
    // from.
    void load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to,
                    const AllowSequence& allow = {});
    void copy_state_to(Session& other);

    uint64_t compute_bytes() const { return engine_.compute_bytes(); }  // arenas and input buffers
    const DeviceSet& devices() const { return engine_.device_set(); }
    // Bit d is set if a plan has computed on device d.
    uint32_t used_devices() const { return engine_.used_devices(); }
    // Returns the nodes of the plan of a step with these counts. Counts in the statistics like the
    // plan of a step.
    std::vector<NodeInfo> graph(int64_t n_tokens, int64_t n_sequences, int64_t n_outputs,
                                bool embeddings, bool encode);
    const Stats& stats() const { return engine_.stats(); }
    void reset_stats() { engine_.stats() = {}; }
    // Traces the nodes of every run until take_trace(). Throws InvalidArgument if another trace is
    // active.
    void start_trace() { engine_.start_trace(); }
    std::vector<TracedNode> take_trace() { return engine_.take_trace(); }

    // Returns the names of the values that a step computes, in order: "blk.3.attn_out".
    std::vector<std::string> value_names();
    // Returns the shape of one row of that value: [width] or [heads, head_dim].
    Shape value_shape(const std::string& name);
    // Records the values of these names in every later call. Returns the names in the order of
    // CapturedCall. Throws InvalidArgument for an unknown name or if another capture is active.
    std::vector<std::string> start_capture(std::span<const std::string> names,
                                           std::shared_ptr<CaptureSink> sink = nullptr);
    // Returns the names of the values that gradients can be computed of, in order.
    std::vector<std::string> gradient_names();
    // Computes the gradients of `loss` with respect to the values of these names in every later
    // call. Returns the names in the order of GradientCall. Throws InvalidArgument for an unknown
    // name, without logits or if other gradients are active; UnsupportedError if an operation
    // between the values and the logits has no derivative.
    std::vector<std::string> start_gradients(std::span<const std::string> names,
                                             std::shared_ptr<Loss> loss);
    // Applies `edit` to the value of that name in every later call; edits of one name apply in the
    // order of their start. Returns its id in Attachments::edits. Throws InvalidArgument.
    uint64_t start_edit(const std::string& name, std::shared_ptr<const ValueEdit> edit);
    // Makes later calls apply the attached edits.
    void use_edits();
    // Replaces the active adapters for all later calls; an empty list removes them. Changing only
    // scales builds no plan. Throws InvalidArgument, or UnsupportedError if an adapter changes a
    // weight that is not an operand of a matrix product.
    // `sequences`: those that use the adapters; empty: all, also those with adapters of their own.
    void set_lora(std::vector<ScaledAdapter> adapters, std::span<const SequenceId> sequences = {});
    // Adds row i of `rows`, [n, width], to the output of layer i, for the layers from `first_layer`
    // to `last_layer` (nullopt: the last layer). No rows: removes the vector. Throws
    // InvalidArgument.
    // `sequences`: as for set_lora().
    void set_control_vector(std::span<const float> rows, int64_t n, int64_t first_layer,
                            std::optional<int64_t> last_layer,
                            std::span<const SequenceId> sequences = {});

private:
    Session(const std::shared_ptr<const LoadedModel>& model, const ContextSettings& settings,
            Attachments& attachments, std::unique_ptr<Memory> memory);
    void check_sequence(SequenceId sequence) const;
    void check_sequence(std::optional<SequenceId> sequence) const;
    void check_range(PositionRange range) const;
    // Throws OutOfRange for a layer of the model that is outside of the range of the context.
    void check_runs_layer(int layer) const;
    CachedHeads heads_of(int layer, uint8_t part) const;
    SequenceRows read_rows(int layer, SequenceId sequence, uint8_t part);
    StepRunner& encode_runner();
    bool uses_weight(WeightId weight);
    void set_control(std::shared_ptr<const ActiveControl> vector,
                     std::span<const SequenceId> sequences);
    void use_control();
    std::vector<NamedEdit> control_edits();
    void drop_own_changes(SequenceId sequence) noexcept;
    void restore_own_changes() noexcept;
    void use_own_changes();
    // Returns the adapters and the control vector of these sequences, each with its sequence if not
    // all have the same. Without sequences, returns those of a sequence that has none of its own.
    std::vector<ActiveChange> active_changes(std::span<const SequenceId> sequences) const;
    std::vector<StepRunner*> runners();  // one for each graph that the calls of the model run
    std::unique_ptr<StepRunner> make_runner(const CallForm& form,
                                            std::shared_ptr<StoredMemory> stored,
                                            std::optional<double> defrag_threshold = {});
    std::vector<Engine::ValueInfo> value_infos();
    Engine::ValueInfo find_value(std::string_view what, const std::string& name);

    // The changes that sequences had of their own before a handle of theirs was first opened or
    // closed in a transaction. A rollback restores them.
    struct SavedChanges {
        std::vector<bool> sequences;  // [n_seq_max] those whose changes are saved
        std::map<SequenceId, std::vector<ScaledAdapter>> adapters;
        std::map<SequenceId, std::shared_ptr<const ActiveControl>> control;
    };

    std::shared_ptr<const LoadedModel> model_;
    ContextSettings settings_;
    Attachments& attachments_;
    Engine engine_;
    Facts facts_;                // that a state must have to be loaded
    std::vector<bool> handles_;  // by sequence id: reserved by open_sequence()
    BySequence<std::vector<ScaledAdapter>> adapters_;
    BySequence<std::shared_ptr<const ActiveControl>> control_;  // null if there is none
    std::vector<SavedChanges> saved_changes_;                   // one for each open transaction
    // True if handles have changed what sequences have of their own since the engine was told.
    bool own_changes_are_new_ = false;
    std::unique_ptr<StepRunner> decode_runner_;
    std::unique_ptr<StepRunner> encode_runner_;  // EncodeMemory::own: created by the first encode()
};

}  // namespace plait
