// A context runs batches through a model and keeps the memory of its sequences.
//
//   batch -> prepare -> split -> place -> (per microbatch: key, plan, inputs, run) -> commit -> outputs
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_set.h"
#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/memory.h"
#include "plan/plan_cache.h"
#include "runtime/devices/place_layers.h"
#include "runtime/loaded_model.h"
#include "runtime/state/facts.h"
#include "runtime/state/state_transfer.h"
#include "runtime/step/engine.h"
#include "runtime/step/outputs.h"
#include "runtime/step/stats.h"
#include "runtime/step/step_runner.h"

namespace plait {

struct ContextOptions {
    std::optional<int64_t> n_ctx;  // nullopt: the training length, or less if memory is short
    int32_t n_seq_max = 1;
    std::string kv = "auto";  // "unified" | "streams"
    std::optional<int64_t> kv_cells;
    DType type_k = DType::f16;
    DType type_v = DType::f16;
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    std::string backend = "cpu";
    LayerOptions layers;  // placement of layers on devices
    std::optional<int> threads;
    std::optional<std::string> isa;
    std::optional<bool> flash_attention;
    bool embeddings = false;
    std::optional<Pooling> pooling;  // nullopt: the model's own
    std::optional<bool> causal;
    bool graph_reuse = true;
    bool fuse = true;
    bool invariant = true;
    bool swa_full = false;
    std::optional<double> defrag_threshold = 0.5;  // nullopt: never automatically
};

// A copy of the keys or values of one sequence, ordered by position.
struct Rows {
    std::vector<float> values;  // [n, n_heads, head_dim]
    int64_t n = 0;
    int n_heads = 0;
    int head_dim = 0;
};

// Thread-safe: public functions lock, and calls from several threads run one after the other. After
// close(), functions throw InvalidArgument unless noted. If a function throws, the memory is unchanged.
class Context {
public:
    Context(std::shared_ptr<const LoadedModel> model, const ContextOptions& options);
    ~Context();

    // Polls `stop`, if given, between nodes on the calling thread, and throws Interrupted on request.
    Outputs decode(const BatchView& batch, StopSignal* stop = nullptr);
    // Decoder-only models: the same computation as decode(), in an empty memory that is discarded.
    // Encoder-decoder models: stores what decode() of these sequences attends to. Encoder-only models:
    // the same as decode().
    Outputs encode(const BatchView& batch, StopSignal* stop = nullptr);

    // Sequence operations; see KVCache in docs/api.md. Ranges are half open.
    bool seq_rm(SequenceId sequence, PositionRange range);
    void seq_cp(SequenceId from, SequenceId to, PositionRange range);
    void seq_keep(SequenceId sequence);
    void seq_add(SequenceId sequence, PositionRange range, int32_t delta);
    void seq_div(SequenceId sequence, PositionRange range, int32_t divisor);
    void clear();
    std::optional<PositionBounds> seq_positions(SequenceId sequence) const;
    bool can_shift() const;
    bool can_partial_remove() const;
    // Removes the positions from `next` on, or from an earlier position if the memory cannot roll back to
    // `next`. Returns the position of the next token; later tokens must be decoded again.
    Position rewind(SequenceId sequence, Position next);

    // Defragments the cache in rounds of at most `max_moves` copies; see Defragmenter.
    DefragReport defrag(std::optional<int64_t> max_moves);
    std::optional<DefragReport> last_defrag() const;
    double fragmentation() const;

    // Save and load the state of one sequence or of all: to bytes (state_format.h), to a file, to another
    // context of the same model. Loading replaces what is there. Throw StateError.
    void save_state(std::optional<SequenceId> sequence, const MakeRoom& make_room);
    // `allow` is called before a state of one sequence replaces the sequence that it was saved from.
    void load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to,
                    const AllowSequence& allow = nullptr);
    void save_file(const std::string& path, std::optional<SequenceId> sequence);
    void load_file(const std::string& path, std::optional<SequenceId> to,
                   const AllowSequence& allow = nullptr);
    void copy_state_to(Context& other);

    std::string memory_kind() const;
    int32_t n_streams() const;
    int64_t n_cells() const;
    int64_t n_used() const;
    uint64_t memory_bytes() const;
    uint64_t compute_bytes() const;  // arenas and input buffers
    std::vector<Cell> cells() const;
    Rows keys(int layer, SequenceId sequence);
    Rows values(int layer, SequenceId sequence);

    // Reserves an empty sequence id that no open handle uses. Throws CacheFull if there is none.
    SequenceId open_sequence();
    void close_sequence(SequenceId sequence);  // frees its cells; does nothing after close()

    const std::shared_ptr<const LoadedModel>& model() const { return model_; }
    // With defaults resolved; n_ctx is set.
    const ContextOptions& options() const { return options_; }
    int64_t n_ctx() const { return *options_.n_ctx; }
    std::vector<std::string> devices() const;  // devices that plans have computed on, in order
    // In the order of Stats::nodes.
    const std::vector<std::string>& all_devices() const { return devices_; }
    Pooling pooling() const { return pooling_; }
    bool invariant() const { return options_.invariant; }
    // Returns the nodes of the plan of a step with these counts. Counts in the statistics like the plan of
    // a step.
    std::vector<NodeInfo> graph(int64_t n_tokens, int64_t n_sequences, int64_t n_outputs,
                                bool embeddings, bool encode);
    // Returns the names of the values that a step computes, in order: "blk.3.attn_out".
    std::vector<std::string> value_names();
    // Records the values of these names in every call until stop_capture(). Returns the names in the order
    // of CapturedCall. Throws InvalidArgument for an unknown name or if another capture is active.
    std::vector<std::string> start_capture(std::span<const std::string> names);
    // Return the calls recorded since the last take_captured(). Allowed after close().
    std::vector<CapturedCall> take_captured();
    std::vector<CapturedCall> stop_capture();
    // Replaces the active adapters for all later calls; an empty list removes them. Changing only scales
    // builds no plan. Throws InvalidArgument, or UnsupportedError if an adapter changes a weight that is not
    // an operand of a matrix product.
    void set_lora(std::vector<ScaledAdapter> adapters);
    // Adds row i of `rows`, [n, width], to the output of layer i, for the layers from `first_layer` to
    // `last_layer` (nullopt: the last layer). No rows: removes the vector. Throws InvalidArgument.
    void set_control_vector(std::span<const float> rows, int64_t n, int64_t first_layer,
                            std::optional<int64_t> last_layer);
    // Applies `edit` to the value of that name in every later call; edits of one name apply in the order
    // of their start. Returns an id for stop_edit(). Throws InvalidArgument.
    uint64_t start_edit(const std::string& name, std::shared_ptr<ValueEdit> edit);
    std::shared_ptr<ValueEdit> stop_edit(uint64_t id);  // returns the edit; null if unknown
    // Returns the shape of one row of that value: [width] or [heads, head_dim].
    Shape value_shape(const std::string& name);
    // Traces the nodes of every run until take_trace().
    void start_trace();
    std::vector<TracedNode> take_trace();
    Stats stats() const;
    void reset_stats();

    void close() noexcept;
    bool closed() const;

private:
    void check_sequence(SequenceId sequence) const;
    void check_sequence(std::optional<SequenceId> sequence) const;
    void check_range(PositionRange range) const;
    Rows read_rows(int layer, SequenceId sequence, uint8_t part);
    StepRunner& decode_runner() const;  // throws InvalidArgument after close()
    StepRunner& encode_runner();
    std::unique_ptr<StepRunner> make_runner(GraphKind kind, std::shared_ptr<StoredMemory> stored);
    std::vector<Engine::ValueInfo> value_infos();
    Engine::ValueInfo find_value(std::string_view what, const std::string& name);
    void use_edits();
    MemoryOptions memory_options() const;
    DeviceSet choose_devices(const MemoryLayout& layout, const EngineLimits& limits);

    std::shared_ptr<const LoadedModel> model_;
    ContextOptions options_;
    Pooling pooling_;
    std::vector<std::string> devices_;
    mutable std::mutex mutex_;
    std::unique_ptr<Engine> engine_;  // null after close()
    Recorder recorder_;
    std::unique_ptr<StepRunner> decode_runner_;
    std::unique_ptr<StepRunner> encode_runner_;  // decoder-only: created by the first encode()
    Facts facts_;                                // required of a state to load
    std::vector<bool> handles_;                  // by sequence id: reserved by open_sequence()
    struct StartedEdit {
        uint64_t id;
        ValueName name;
        std::shared_ptr<ValueEdit> edit;
    };
    std::vector<StartedEdit> edits_;  // active edits
    uint64_t n_edits_ = 0;            // edits started so far
};

}  // namespace plait
