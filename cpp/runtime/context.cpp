#include "runtime/context.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "runtime/devices/fit.h"
#include "runtime/devices/make_devices.h"

namespace plait {
namespace {

constexpr int64_t kMaxCells = int64_t{1} << 31;

template <typename T>
void check_between(const char* name, T value, T min, T max) {
    if (value < min || value > max)
        throw InvalidArgument(text(name, ": expected ", min, " to ", max, ", got ", value));
}

void check(const ContextOptions& o) {
    check_between<int64_t>("n_ctx", o.n_ctx.value_or(1), 1, INT32_MAX);
    check_between("n_seq_max", o.n_seq_max, 1, 65536);
    check_between("n_batch", o.n_batch, 1, 1 << 24);
    check_between("n_ubatch", o.n_ubatch, 1, 1 << 20);
    if (o.kv != "auto" && o.kv != "unified" && o.kv != "streams")
        throw InvalidArgument("kv: expected \"auto\", \"unified\" or \"streams\", got \"" + o.kv +
                              "\"");
    if (o.defrag_threshold && !(*o.defrag_threshold >= 0 && *o.defrag_threshold <= 1))
        throw InvalidArgument(text("defrag_threshold: expected 0 to 1, got ", *o.defrag_threshold));
    if (o.kv_cells) check_between<int64_t>("kv_cells", *o.kv_cells, 1, kMaxCells);
}

// `n_devices`: number of named devices, excluding the CPU. If "auto" found none, `split` needs one entry.
void check_layers(const ContextOptions& o, size_t n_devices) {
    const std::optional<int64_t> n_gpu_layers = o.layers.n_gpu_layers;
    if (n_gpu_layers && *n_gpu_layers < -1)
        throw InvalidArgument(
            text("n_gpu_layers: expected 0 or more, or -1 for all, got ", *n_gpu_layers));
    const bool other = o.backend != "cpu";
    if (n_gpu_layers && *n_gpu_layers != 0 && !other)
        throw InvalidArgument(
            text("n_gpu_layers: expected 0 with backend \"cpu\", got ", *n_gpu_layers));
    const std::vector<double>& split = o.layers.split;
    if (split.empty()) return;
    const size_t expected = other ? std::max<size_t>(n_devices, 1) : 0;
    if (split.size() != expected)
        throw InvalidArgument(text("split: expected a share for each of the ", expected,
                                   " devices of backend \"", o.backend, "\", got ", split.size()));
    double sum = 0;
    for (const double share : split) {
        if (!std::isfinite(share) || share < 0)
            throw InvalidArgument(
                text("split: expected finite numbers of at least 0, got ", share));
        sum += share;
    }
    if (!(sum > 0)) throw InvalidArgument("split: expected a share above 0, but all shares are 0");
}

}  // namespace

Context::Context(std::shared_ptr<const LoadedModel> model, const ContextOptions& options)
    : model_(std::move(model)), options_(options) {
    check(options_);
    const ModelInfo& info = model_->info();
    pooling_ = options_.pooling.value_or(info.pooling);
    options_.causal = options_.causal.value_or(info.causal);
    options_.flash_attention = options_.flash_attention.value_or(true);
    options_.n_ubatch = std::min(options_.n_ubatch, options_.n_batch);
    if (!options_.n_ctx)
        options_.n_ctx =
            fitting_n_ctx(model_->model().memory_specs(), memory_options(), info.n_ctx_train);
    handles_.assign(static_cast<size_t>(options_.n_seq_max), false);

    auto memory = make_memory(model_->model().memory_specs(), memory_options());
    // Bidirectional attention needs a whole sequence in one microbatch.
    const bool can_split = *options_.causal && !info.has_encoder;
    const int64_t longest =
        can_split ? options_.n_ubatch : std::min<int64_t>(*options_.n_ctx, options_.n_batch);
    const EngineLimits limits{
        .n_tokens = static_cast<uint32_t>(std::max<int64_t>(options_.n_ubatch, longest)),
        .n_sequences = static_cast<uint32_t>(std::min(options_.n_seq_max, options_.n_batch)),
        .n_rows = static_cast<uint32_t>(options_.n_batch),
        .build = {.n_ctx = *options_.n_ctx, .n_pos_per_token = info.n_pos_per_token},
        .reuse = options_.graph_reuse,
        .fuse = options_.fuse,
    };
    engine_ = std::make_unique<Engine>(model_, choose_devices(memory->layout(), limits),
                                       memory->layout(), limits);
    devices_ = engine_->device_set().names();
    options_.invariant = options_.invariant && engine_->device_set().invariant();
    decode_runner_ = make_runner(GraphKind::decode, std::make_shared<StoredMemory>(
                                                        std::move(memory), engine_->device_set()));
    if (info.has_encoder) encode_runner_ = make_runner(GraphKind::encode, decode_runner_->stored());
    facts_ = model_->facts();
    const CacheSettings settings{limits.build, *options_.causal, options_.swa_full};
    std::ranges::move(facts_of(model_->model(), decode_runner_->memory().layout(), settings),
                      std::back_inserter(facts_));
}

Context::~Context() { close(); }

DeviceSet Context::choose_devices(const MemoryLayout& layout, const EngineLimits& limits) {
    std::vector<std::unique_ptr<Backend>> devices =
        make_devices(options_.backend, {options_.threads, options_.isa});
    check_layers(options_, devices.size() - 1);
    if (devices.size() == 1) return std::move(devices.front());
    const ModelInfo& info = model_->info();
    const PlanKey step{
        .kind = info.has_decoder ? GraphKind::decode : GraphKind::encode,
        .output = info.has_decoder ? OutputKind::both : OutputKind::embeddings,
        .causal = *options_.causal,
        .flash = *options_.flash_attention,
        .n_tokens = limits.n_tokens,
        .n_sequences = limits.n_sequences,
        .n_outputs = limits.n_tokens,
    };
    const std::vector<Graph> graphs = graphs_of(model_->model(), step, layout, limits.build);
    LayerDevices placed =
        place_layers(info, graphs, layout, devices,
                     Engine::input_layout(layout, limits, info.input_width()), options_.layers);
    return join(std::move(devices), std::move(placed));
}

MemoryOptions Context::memory_options() const {
    MemoryOptions memory;
    memory.n_ctx = options_.n_ctx.value_or(1);
    memory.n_seq_max = options_.n_seq_max;
    memory.n_cells = options_.kv_cells;
    memory.streams = options_.kv == "streams";
    memory.swa_full = options_.swa_full;
    memory.keys = options_.type_k;
    memory.values = options_.type_v;
    memory.n_batch = options_.n_batch;
    memory.n_ubatch = options_.n_ubatch;
    memory.axes = model_->info().n_pos_per_token;
    memory.causal = *options_.causal;
    return memory;
}

std::unique_ptr<StepRunner> Context::make_runner(GraphKind kind,
                                                 std::shared_ptr<StoredMemory> stored) {
    const ModelInfo& info = model_->info();
    const bool encoder = kind == GraphKind::encode && info.has_encoder;
    const bool causal = *options_.causal && !encoder;
    const bool pools = pooling_ != Pooling::none && !encoder;
    StepOptions runner;
    runner.kind = info.has_decoder ? kind : GraphKind::encode;
    runner.step = encoder ? StepKind::encode : StepKind::decode;
    runner.limits = {
        .n_vocab = info.n_vocab,
        .width = info.input_width(),
        .n_positions = info.n_positions,
        .n_batch = options_.n_batch,
        .n_seq_max = options_.n_seq_max,
        .axes = info.n_pos_per_token,
        .coupled = stored->memory->n_streams() == 1,
        .call = kind == GraphKind::encode || !info.has_decoder ? "encode" : "decode",
    };
    runner.split = {.max_tokens = static_cast<uint32_t>(options_.n_ubatch),
                    .whole_sequences = !causal,
                    .constant_coupling = stored->memory->needs_constant_coupling()};
    runner.causal = causal;
    runner.flash = *options_.flash_attention;
    runner.logits = info.has_decoder && !encoder;
    runner.embeddings = options_.embeddings || !info.has_decoder || (pools && options_.pooling);
    if (kind == GraphKind::decode) runner.defrag_threshold = options_.defrag_threshold;
    runner.pooling = runner.embeddings && pools ? pooling_ : Pooling::none;
    if (runner.pooling == Pooling::rank && info.n_scores == 0)
        throw InvalidArgument(text("pooling: \"rank\" needs a head that scores, which this ",
                                   info.arch,
                                   " model has none of; expected \"none\", \"mean\", "
                                   "\"cls\" or \"last\""));
    return std::make_unique<StepRunner>(info, std::move(stored), *engine_, recorder_, runner);
}

StepRunner& Context::decode_runner() const {
    if (!decode_runner_) throw InvalidArgument("the context is closed");
    return *decode_runner_;
}

StepRunner& Context::encode_runner() {
    decode_runner();
    if (!model_->info().has_decoder) return *decode_runner_;
    if (!encode_runner_) {
        // A separate memory with the size of one call, cleared after each call.
        MemoryOptions memory_for_call = memory_options();
        memory_for_call.streams = false;
        memory_for_call.n_ctx = *options_.causal
                                    ? int64_t{memory_for_call.n_batch}
                                    : std::min<int64_t>(*options_.n_ctx, memory_for_call.n_batch);
        memory_for_call.n_cells = memory_for_call.n_batch;
        auto memory = make_memory(model_->model().memory_specs(), memory_for_call);
        encode_runner_ =
            make_runner(GraphKind::encode,
                        std::make_shared<StoredMemory>(std::move(memory), engine_->device_set()));
    }
    return *encode_runner_;
}

Outputs Context::decode(const BatchView& batch, StopSignal* stop) {
    const std::lock_guard lock(mutex_);
    return decode_runner().run(batch, stop);
}

Outputs Context::encode(const BatchView& batch, StopSignal* stop) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = encode_runner();
    Outputs outputs = runner.run(batch, stop);
    if (!model_->info().has_encoder) runner.memory().clear();
    return outputs;
}

void Context::check_sequence(SequenceId sequence) const {
    if (sequence < 0 || sequence >= options_.n_seq_max)
        throw InvalidArgument(
            text("sequence ", sequence, " does not exist: expected 0 to ", options_.n_seq_max - 1));
}

void Context::check_range(PositionRange range) const {
    if (range.begin < 0 || range.end < range.begin)
        throw InvalidArgument(
            text("positions [", range.begin, ", ", range.end, "): expected 0 <= p0 <= p1"));
}

bool Context::seq_rm(SequenceId sequence, PositionRange range) {
    const std::lock_guard lock(mutex_);
    Memory& memory = decode_runner().memory();
    check_sequence(sequence);
    check_range(range);
    return memory.remove(sequence, range);
}

void Context::seq_cp(SequenceId from, SequenceId to, PositionRange range) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(from);
    check_sequence(to);
    check_range(range);
    runner.edit(
        [&](Memory& memory, std::vector<RowMove>& moves) { memory.copy(from, to, range, moves); });
}

void Context::seq_keep(SequenceId sequence) {
    const std::lock_guard lock(mutex_);
    Memory& memory = decode_runner().memory();
    check_sequence(sequence);
    memory.keep(sequence);
}

void Context::seq_add(SequenceId sequence, PositionRange range, int32_t delta) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(sequence);
    check_range(range);
    runner.edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.add(sequence, range, delta, moves);
    });
}

void Context::seq_div(SequenceId sequence, PositionRange range, int32_t divisor) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(sequence);
    check_range(range);
    if (divisor < 1) throw InvalidArgument(text("divisor: expected at least 1, got ", divisor));
    runner.edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.divide(sequence, range, divisor, moves);
    });
}

void Context::clear() {
    const std::lock_guard lock(mutex_);
    decode_runner().memory().clear();
}

std::optional<PositionBounds> Context::seq_positions(SequenceId sequence) const {
    const std::lock_guard lock(mutex_);
    check_sequence(sequence);
    return decode_runner().memory().positions(sequence);
}

bool Context::can_shift() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().can_shift();
}

bool Context::can_partial_remove() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().can_partial_remove();
}

std::string Context::memory_kind() const {
    const std::lock_guard lock(mutex_);
    return std::string(decode_runner().memory().kind());
}

int32_t Context::n_streams() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().n_streams();
}

int64_t Context::n_cells() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().n_cells();
}

int64_t Context::n_used() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().n_used();
}

uint64_t Context::memory_bytes() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().layout().bytes();
}

uint64_t Context::compute_bytes() const {
    const std::lock_guard lock(mutex_);
    decode_runner();
    return engine_->compute_bytes();
}

std::vector<Cell> Context::cells() const {
    const std::lock_guard lock(mutex_);
    return decode_runner().memory().cells();
}

Rows Context::keys(int layer, SequenceId sequence) { return read_rows(layer, sequence, 0); }
Rows Context::values(int layer, SequenceId sequence) { return read_rows(layer, sequence, 1); }

Rows Context::read_rows(int layer, SequenceId sequence, uint8_t part) {
    const std::lock_guard lock(mutex_);
    StepRunner& runner = decode_runner();
    check_sequence(sequence);
    const MemoryLayout& layout = runner.memory().layout();
    if (layer < 0 || static_cast<size_t>(layer) >= layout.specs.size())
        throw OutOfRange(
            text("layer ", layer, " does not exist: expected 0 to ", layout.specs.size() - 1));
    const auto& specs = layout.specs[static_cast<size_t>(layer)];
    const auto slot = std::ranges::find_if(
        specs, [](const StateSpec& s) { return s.get_if<AttentionSpec>() != nullptr; });
    if (slot == specs.end())
        throw UnsupportedError(text("layer ", layer, " has no keys and values"));
    runner.apply_shifts();
    const auto spec = slot->get<AttentionSpec>();
    const bool within_keys = part == 1 && spec.value_dim == 0;
    const StorageId id{static_cast<uint16_t>(layer), static_cast<uint8_t>(slot - specs.begin()),
                       within_keys ? uint8_t{0} : part};
    const StorageInfo& info = layout.at(id);
    const std::vector<int32_t> rows = runner.memory().rows_of(info.group, sequence);
    Rows result{.n = static_cast<int64_t>(rows.size()),
                .n_heads = info.n_heads,
                .head_dim = within_keys ? spec.value_dim_in_key : info.head_dim};
    const auto stored = static_cast<size_t>(info.head_dim);
    const auto wanted = static_cast<size_t>(result.head_dim);
    const auto n_heads = static_cast<size_t>(info.n_heads);
    result.values.resize(rows.size() * n_heads * wanted);
    std::vector<float> row(n_heads * stored);
    for (size_t i = 0; i < rows.size(); ++i) {
        runner.storage().read_row(info, layout.index(id), rows[i], row.data());
        for (size_t h = 0; h < n_heads; ++h)
            std::copy_n(row.data() + h * stored, wanted,
                        result.values.data() + (i * n_heads + h) * wanted);
    }
    return result;
}

SequenceId Context::open_sequence() {
    const std::lock_guard lock(mutex_);
    const Memory& memory = decode_runner().memory();
    for (SequenceId id = 0; id < options_.n_seq_max; ++id) {
        if (handles_[static_cast<size_t>(id)] || memory.positions(id)) continue;
        handles_[static_cast<size_t>(id)] = true;
        return id;
    }
    throw CacheFull(text("no free sequence: all ", options_.n_seq_max, " (n_seq_max) are in use"),
                    1, 0);
}

void Context::close_sequence(SequenceId sequence) {
    const std::lock_guard lock(mutex_);
    if (!decode_runner_) return;
    check_sequence(sequence);
    handles_[static_cast<size_t>(sequence)] = false;
    // Every memory can remove a whole sequence.
    PLAIT_CHECK(decode_runner_->memory().remove(sequence, {}));
}

std::vector<std::string> Context::devices() const {
    const std::lock_guard lock(mutex_);
    decode_runner();
    return engine_->devices();
}

std::vector<NodeInfo> Context::graph(int64_t n_tokens, int64_t n_sequences, int64_t n_outputs,
                                     bool embeddings, bool encode) {
    const std::lock_guard lock(mutex_);
    decode_runner();
    const auto max_tokens = static_cast<int64_t>(engine_->limits().n_tokens);
    check_between<int64_t>("n_tokens", n_tokens, 1, max_tokens);
    check_between<int64_t>("n_seqs", n_sequences, 1,
                           std::min<int64_t>(n_tokens, options_.n_seq_max));
    check_between<int64_t>("n_outputs", n_outputs, 0, n_tokens);
    StepRunner& runner = encode ? encode_runner() : decode_runner();
    return engine_->describe(runner.plan_of(
        static_cast<uint32_t>(n_tokens), static_cast<uint32_t>(n_sequences),
        static_cast<uint32_t>(n_outputs), embeddings ? InputKind::embeddings : InputKind::tokens));
}

std::vector<Engine::ValueInfo> Context::value_infos() {
    std::vector<Engine::ValueInfo> values = decode_runner().values();
    if (model_->info().has_encoder)  // two graphs may have values of the same name
        for (const Engine::ValueInfo& value : encode_runner().values())
            if (std::ranges::find(values, value.name, &Engine::ValueInfo::name) == values.end())
                values.push_back(value);
    return values;
}

Engine::ValueInfo Context::find_value(std::string_view what, const std::string& name) {
    const std::vector<Engine::ValueInfo> known = value_infos();
    const auto found = std::ranges::find(
        known, name, [](const Engine::ValueInfo& value) { return full_name(value.name); });
    if (found == known.end())
        throw InvalidArgument(
            text(what, ": \"", name, "\" is not a value of this model; see value_names()"));
    return *found;
}

std::vector<std::string> Context::value_names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> result;
    for (const Engine::ValueInfo& value : value_infos()) result.push_back(full_name(value.name));
    return result;
}

std::vector<std::string> Context::start_capture(std::span<const std::string> wanted) {
    const std::lock_guard lock(mutex_);
    decode_runner();
    if (recorder_.active())
        throw InvalidArgument("capture: another capture of this context is open");
    std::vector<ValueName> set;
    for (const std::string& name : wanted) set.push_back(find_value("capture", name).name);
    std::ranges::sort(set);
    const auto repeated = std::ranges::unique(set);
    set.erase(repeated.begin(), repeated.end());
    std::vector<std::string> result;
    for (const ValueName& name : set) result.push_back(full_name(name));
    recorder_.start(engine_->capture_set(set), set.size());
    return result;
}

std::vector<CapturedCall> Context::take_captured() {
    const std::lock_guard lock(mutex_);
    return recorder_.take();
}

std::vector<CapturedCall> Context::stop_capture() {
    const std::lock_guard lock(mutex_);
    std::vector<CapturedCall> calls = recorder_.take();
    recorder_.start(0, 0);
    return calls;
}

void Context::start_trace() {
    const std::lock_guard lock(mutex_);
    decode_runner();
    engine_->start_trace();
}

std::vector<TracedNode> Context::take_trace() {
    const std::lock_guard lock(mutex_);
    return engine_ ? engine_->take_trace() : std::vector<TracedNode>{};
}

Stats Context::stats() const {
    const std::lock_guard lock(mutex_);
    return engine_ ? engine_->stats() : Stats{};
}

void Context::reset_stats() {
    const std::lock_guard lock(mutex_);
    if (engine_) engine_->stats() = {};
}

void Context::close() noexcept {
    const std::lock_guard lock(mutex_);
    encode_runner_.reset();
    decode_runner_.reset();
    engine_.reset();
}

bool Context::closed() const {
    const std::lock_guard lock(mutex_);
    return decode_runner_ == nullptr;
}

}  // namespace plait
