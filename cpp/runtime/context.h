// A conversation with a model: its memory, its plans, and the one-way road between them.
//
//   batch -> prepare -> split -> place -> (per piece: key -> plan, inputs, run) -> commit -> outputs
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
    std::optional<int64_t> n_ctx;  // nothing: the training length, or what fits
    int32_t n_seq_max = 1;
    std::string kv = "auto";  // "unified" | "streams"
    std::optional<int64_t> kv_cells;
    DType type_k = DType::f16;
    DType type_v = DType::f16;
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    std::string backend = "cpu";
    LayerOptions layers;  // that are not on the CPU
    std::optional<int> threads;
    std::optional<std::string> isa;
    std::optional<bool> flash_attention;
    bool embeddings = false;
    std::optional<Pooling> pooling;  // nothing: as the model says
    std::optional<bool> causal;
    bool graph_reuse = true;
    bool fuse = true;
    bool invariant = true;
    bool swa_full = false;
    std::optional<double> defrag_threshold = 0.5;  // nothing: never without being asked
};

// Keys or values of one sequence, for people: a copy, by position.
struct Rows {
    std::vector<float> values;  // [n, n_heads, head_dim]
    int64_t n = 0;
    int n_heads = 0;
    int head_dim = 0;
};

// Every public function locks: calls from several threads wait for each other. After close() they
// throw InvalidArgument. An exception leaves the memory as it was.
class Context {
public:
    Context(std::shared_ptr<const LoadedModel> model, const ContextOptions& options);
    ~Context();

    // `stop`, if given, is asked between nodes on this thread; Interrupted when it says so.
    Outputs decode(const BatchView& batch, StopSignal* stop = nullptr);
    // Of a decoder: the same computation without a past and without keeping anything. Of an encoder
    // with a decoder: what decode() of these sequences will attend to. An encoder alone has only
    // this one; decode() does the same there.
    Outputs encode(const BatchView& batch, StopSignal* stop = nullptr);

    // Sequence operations; see api of KVCache. Ranges are half open.
    bool seq_rm(SequenceId sequence, PositionRange range);
    void seq_cp(SequenceId from, SequenceId to, PositionRange range);
    void seq_keep(SequenceId sequence);
    void seq_add(SequenceId sequence, PositionRange range, int32_t delta);
    void seq_div(SequenceId sequence, PositionRange range, int32_t divisor);
    void clear();
    std::optional<PositionBounds> seq_positions(SequenceId sequence) const;
    bool can_shift() const;
    bool can_partial_remove() const;
    // Goes back to before position `next`, or as far before it as this memory can. Returns where
    // the sequence goes on then: what follows has to be fed again.
    Position rewind(SequenceId sequence, Position next);

    // Moves rows together, in rounds of at most `max_moves`; see Defragmenter.
    DefragReport defrag(std::optional<int64_t> max_moves);
    std::optional<DefragReport> last_defrag() const;
    double fragmentation() const;

    // What is remembered, of one sequence or of all: as bytes (state_format.h), from bytes in place
    // of what is there, to a file and from one, to another context of the same model. StateError.
    void save_state(std::optional<SequenceId> sequence, const MakeRoom& make_room);
    void load_state(std::span<const std::byte> bytes, std::optional<SequenceId> to);
    void save_file(const std::string& path, std::optional<SequenceId> sequence);
    void load_file(const std::string& path, std::optional<SequenceId> to);
    void copy_state_to(Context& other);

    std::string memory_kind() const;
    int32_t n_streams() const;
    int64_t n_cells() const;
    int64_t n_used() const;
    uint64_t memory_bytes() const;
    uint64_t compute_bytes() const;  // scratch of a step and its inputs
    std::vector<Cell> cells() const;
    Rows keys(int layer, SequenceId sequence);
    Rows values(int layer, SequenceId sequence);

    // Sequence ids for handles: one that holds nothing and that nobody else was given.
    SequenceId open_sequence();                // CacheFull when none is left
    void close_sequence(SequenceId sequence);  // frees its cells; harmless after close()

    const std::shared_ptr<const LoadedModel>& model() const { return model_; }
    const ContextOptions& options() const { return options_; }  // as resolved: n_ctx is set
    int64_t n_ctx() const { return *options_.n_ctx; }
    std::vector<std::string> devices() const;  // that compute something, in order
    const std::vector<std::string>& all_devices() const {
        return devices_;
    }  // as stats number them
    Pooling pooling() const { return pooling_; }
    bool invariant() const { return options_.invariant; }
    // The plan of a step of `n_tokens` tokens of `n_sequences` sequences that wants `n_outputs`
    // rows; counted as a step's plan is.
    std::vector<NodeInfo> graph(int64_t n_tokens, int64_t n_sequences, int64_t n_outputs,
                                bool embeddings, bool encode);
    // The names of the values that its steps compute, in their order: "blk.3.attn_out".
    std::vector<std::string> value_names();
    // Records values of these names in every call until stop_capture(), in the order that it
    // returns. InvalidArgument for an unknown name, and while another capture is open.
    std::vector<std::string> start_capture(std::span<const std::string> names);
    // What calls recorded since it was last asked; harmless after close(), as the next.
    std::vector<CapturedCall> take_captured();
    std::vector<CapturedCall> stop_capture();
    // Adds these to the model in every later call, in place of those before; none removes them.
    // Changing scales alone builds no plan. InvalidArgument, and UnsupportedError for an adapter of
    // a weight that is no matrix of a product.
    void set_lora(std::vector<ScaledAdapter> adapters);
    // Adds row i, [n, width], to what layer i gives, from `first_layer` to `last_layer` (nothing: the
    // last); no rows: nothing is added. InvalidArgument.
    void set_control_vector(std::span<const float> rows, int64_t n, int64_t first_layer,
                            std::optional<int64_t> last_layer);
    // In every call from now on, `edit` is asked what becomes of the value of that name; several
    // of one name follow each other. Returns a number for stop_edit(). InvalidArgument.
    uint64_t start_edit(const std::string& name, std::shared_ptr<ValueEdit> edit);
    std::shared_ptr<ValueEdit> stop_edit(uint64_t number);  // what was started
    // Of a row of such a value: [width], or [heads, head_dim].
    Shape value_shape(const std::string& name);
    // Notes what runs when, from now on until it is taken.
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
    StepRunner& decode_runner() const;  // throws when closed
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
    std::unique_ptr<Engine> engine_;  // null once closed
    Recorder recorder_;
    std::unique_ptr<StepRunner> decode_runner_;
    std::unique_ptr<StepRunner> encode_runner_;  // of a decoder: made by the first encode()
    Facts facts_;                                // of states that fit
    std::vector<bool> handles_;                  // by sequence id: given out by open_sequence()
    struct StartedEdit {
        uint64_t number;
        ValueName name;
        std::shared_ptr<ValueEdit> edit;
    };
    std::vector<StartedEdit> edits_;  // that were not stopped
    uint64_t n_edits_ = 0;            // ever started
};

}  // namespace plait
