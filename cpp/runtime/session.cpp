#include "runtime/session.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "runtime/devices/backend_registry.h"
#include "tensor/convert.h"

namespace plait {
namespace {

// Attention in both directions needs a whole sequence in one microbatch, and so does that of models
// that store nothing.
bool needs_whole_sequences(const CallForm& form, const ModelInfo& info) {
    return !form.causal || !info.has_decoder;
}

EngineLimits limits_of(const ContextSettings& settings, const ModelInfo& info) {
    const int64_t n_ubatch = settings.n_ubatch();
    const bool whole = needs_whole_sequences(settings.calls.decode, info) ||
                       needs_whole_sequences(settings.calls.encode, info);
    const int64_t longest =
        whole ? std::min<int64_t>(settings.n_ctx(), settings.n_batch()) : n_ubatch;
    const int64_t n_sequences = std::min(settings.n_seq_max(), settings.n_batch());
    // With a memory of its own, encode() may see more keys than decode(); see memory_of_a_call().
    const bool own = settings.calls.encode_memory == EncodeMemory::own;
    const int64_t n_rows = (own ? n_sequences : 1) * settings.n_batch();
    return {
        .n_tokens = static_cast<uint32_t>(std::max(n_ubatch, longest)),
        .n_sequences = static_cast<uint32_t>(n_sequences),
        .n_rows = static_cast<uint32_t>(std::min<int64_t>(n_rows, UINT32_MAX)),
        .build = {.n_ctx = settings.n_ctx(),
                  .n_pos_per_token = info.n_pos_per_token,
                  .layers = settings.layer_range},
        .reuse = settings.graph_reuse,
        .fuse = settings.fuse,
    };
}

DeviceSet choose_devices(const Model& model, const ContextSettings& settings,
                         const MemoryLayout& layout, const EngineLimits& limits) {
    std::vector<std::unique_ptr<Backend>> devices =
        make_devices(settings.backend, {settings.threads, settings.isa});
    check_layers(settings, devices.size() - 1);
    if (devices.size() == 1) return std::move(devices.front());
    const CallForm& form = settings.calls.decode;
    const PlanKey largest{
        .kind = form.graph,
        .input = form.input(),
        .output = form.graph == GraphKind::decode ? OutputKind::both : OutputKind::embeddings,
        .causal = form.causal,
        .flash = settings.flash_attention,
        .n_tokens = limits.n_tokens,
        .n_sequences = limits.n_sequences,
        .n_outputs = limits.n_tokens,
    };
    const std::vector<Graph> graphs = graphs_of(model, largest, layout, limits.build);
    LayerDevices placed = place_layers(
        model.info(), graphs, layout, devices,
        Engine::input_layout(layout, limits, model.info().input_width(settings.layer_range)),
        settings.layers);
    return join(std::move(devices), std::move(placed));
}

// The elements of an embedding input of a call; 0 if layers outside of the range would read parts.
int64_t embedding_width(const ModelInfo& info, const CallForm& form, const LayerRange& layers) {
    if (form.first_layer == 0 && info.n_input_parts > 1 && layers.end < info.n_input_parts - 1)
        return 0;
    return info.input_width({.begin = form.first_layer});
}

std::vector<float> weight_floats(const Weights& weights, WeightId id) {
    const TensorType& type = weights.type(id);
    std::vector<std::byte> bytes(type.bytes());
    weights.read(id, 0, bytes);
    std::vector<float> values(static_cast<size_t>(type.shape.elements()));
    dequantize(type.dtype, bytes.data(), values.data(), values.size());
    return values;
}

// The memory of encode() where it has its own: of the size of one call.
MemoryOptions memory_of_a_call(const ContextSettings& settings) {
    MemoryOptions options = settings.memory;
    options.streams = false;
    options.n_cells = options.n_batch;
    options.n_ctx = options.causal ? int64_t{options.n_batch}
                                   : std::min<int64_t>(options.n_ctx, options.n_batch);
    return options;
}

}  // namespace

Session::Session(std::shared_ptr<const LoadedModel> model, const ContextSettings& settings,
                 Attachments& attachments)
    : Session(model, settings, attachments,
              make_memory(model->model().memory_specs_of(settings.layer_range), settings.memory)) {}

Session::Session(const std::shared_ptr<const LoadedModel>& model, const ContextSettings& settings,
                 Attachments& attachments, std::unique_ptr<Memory> memory)
    : model_(model),
      settings_(settings),
      attachments_(attachments),
      engine_(model_,
              choose_devices(model_->model(), settings_, memory->layout(),
                             limits_of(settings_, model_->info())),
              memory->layout(), limits_of(settings_, model_->info())),
      facts_(model_->facts()),
      handles_(static_cast<size_t>(settings_.n_seq_max())) {
    const auto stored = std::make_shared<StoredMemory>(std::move(memory), engine_.device_set());
    decode_runner_ = make_runner(settings_.calls.decode, stored, settings_.defrag_threshold);
    if (settings_.calls.encode_memory == EncodeMemory::shared)
        encode_runner_ = make_runner(settings_.calls.encode, stored);
    const CacheSettings cache{engine_.limits().build, settings_.memory.causal,
                              settings_.memory.swa_full};
    std::ranges::move(facts_of(model_->model(), stored->memory->layout(), cache),
                      std::back_inserter(facts_));
}

std::unique_ptr<StepRunner> Session::make_runner(const CallForm& form,
                                                 std::shared_ptr<StoredMemory> stored,
                                                 std::optional<double> defrag_threshold) {
    const ModelInfo& info = model_->info();
    StepOptions options;
    options.form = form;
    options.limits = {
        .n_vocab = info.n_vocab,
        .width = embedding_width(info, form, settings_.layer_range),
        .first_layer = form.first_layer,
        .n_positions = info.n_positions,
        .n_batch = settings_.n_batch(),
        .n_seq_max = settings_.n_seq_max(),
        .axes = info.n_pos_per_token,
        .coupled = stored->memory->n_streams() == 1,
        .call = form.name,
    };
    // Layers without a memory compute each token by itself.
    const bool attends = !stored->memory->layout().groups.empty();
    options.split = {.max_tokens = static_cast<uint32_t>(settings_.n_ubatch()),
                     .whole_sequences = attends && needs_whole_sequences(form, info),
                     .constant_coupling = stored->memory->needs_constant_coupling()};
    options.flash = settings_.flash_attention;
    options.defrag_threshold = defrag_threshold;
    auto runner = std::make_unique<StepRunner>(info, std::move(stored), engine_,
                                               attachments_.recorder, options);
    runner->attach(attachments_.gradients);
    return runner;
}

StepRunner& Session::encode_runner() {
    if (settings_.calls.encode_memory == EncodeMemory::same) return *decode_runner_;
    if (!encode_runner_) {
        auto memory = make_memory(model_->model().memory_specs_of(settings_.layer_range),
                                  memory_of_a_call(settings_));
        encode_runner_ =
            make_runner(settings_.calls.encode,
                        std::make_shared<StoredMemory>(std::move(memory), engine_.device_set()));
    }
    return *encode_runner_;
}

std::vector<StepRunner*> Session::runners() {
    if (settings_.calls.encode_memory == EncodeMemory::shared)
        return {decode_runner_.get(), encode_runner_.get()};
    return {decode_runner_.get()};
}

Outputs Session::decode(const BatchView& batch, StopSignal* stop) {
    use_own_changes();
    return decode_runner_->run(batch, stop);
}

Outputs Session::encode(const BatchView& batch, StopSignal* stop) {
    use_own_changes();
    StepRunner& runner = encode_runner();
    Outputs outputs = runner.run(batch, stop);
    if (settings_.calls.encode_memory != EncodeMemory::shared) runner.memory().clear();
    return outputs;
}

void Session::check_sequence(SequenceId sequence) const {
    if (sequence < 0 || sequence >= settings_.n_seq_max())
        throw InvalidArgument(text("sequence ", sequence, " does not exist: expected 0 to ",
                                   settings_.n_seq_max() - 1));
}

void Session::check_range(PositionRange range) const {
    if (range.begin < 0 || range.end < range.begin)
        throw InvalidArgument(
            text("positions [", range.begin, ", ", range.end, "): expected 0 <= p0 <= p1"));
}

bool Session::seq_rm(SequenceId sequence, PositionRange range) {
    check_sequence(sequence);
    check_range(range);
    return decode_runner_->memory().remove(sequence, range);
}

void Session::seq_cp(SequenceId from, SequenceId to, PositionRange range) {
    check_sequence(from);
    check_sequence(to);
    check_range(range);
    decode_runner_->edit(
        [&](Memory& memory, std::vector<RowMove>& moves) { memory.copy(from, to, range, moves); });
}

void Session::seq_keep(SequenceId sequence) {
    check_sequence(sequence);
    decode_runner_->memory().keep(sequence);
}

void Session::seq_add(SequenceId sequence, PositionRange range, int32_t delta) {
    check_sequence(sequence);
    check_range(range);
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.add(sequence, range, delta, moves);
    });
}

void Session::seq_div(SequenceId sequence, PositionRange range, int32_t divisor) {
    check_sequence(sequence);
    check_range(range);
    if (divisor < 1) throw InvalidArgument(text("divisor: expected at least 1, got ", divisor));
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.divide(sequence, range, divisor, moves);
    });
}

void Session::seq_discard(SequenceId sequence, PositionRange range) {
    check_sequence(sequence);
    check_range(range);
    decode_runner_->edit([&](Memory& memory, std::vector<RowMove>& moves) {
        memory.discard(sequence, range, moves);
    });
}

std::optional<PositionBounds> Session::seq_positions(SequenceId sequence) const {
    check_sequence(sequence);
    return decode_runner_->memory().positions(sequence);
}

void Session::check_runs_layer(int layer) const {
    const LayerRange& run = settings_.layer_range;
    if (layer < model_->info().n_layers && !run.has(layer))
        throw OutOfRange(text("layer ", layer, " is not run by this context: expected ", run.begin,
                              " to ", run.end - 1));
}

SequenceId Session::open_sequence() {
    const Memory& memory = decode_runner_->memory();
    for (SequenceId id = 0; id < settings_.n_seq_max(); ++id) {
        if (handles_[static_cast<size_t>(id)] || memory.holds(id)) continue;
        drop_own_changes(id);
        handles_[static_cast<size_t>(id)] = true;
        return id;
    }
    throw CacheFull(text("no sequence of the context is free: all ", settings_.n_seq_max(),
                         " (n_seq_max) are in use; close one, or create the context with a larger "
                         "n_seq_max"),
                    1, 0);
}

void Session::close_sequence(SequenceId sequence) {
    check_sequence(sequence);
    // Every memory can remove a whole sequence.
    PLAIT_CHECK(decode_runner_->memory().remove(sequence, {}));
    drop_own_changes(sequence);
    handles_[static_cast<size_t>(sequence)] = false;
}

void Session::begin_transaction() {
    saved_changes_.push_back({.sequences = std::vector<bool>(handles_.size())});
    try {
        decode_runner_->memory().begin_transaction();
    } catch (...) {
        saved_changes_.pop_back();
        throw;
    }
}

void Session::commit_transaction() noexcept {
    decode_runner_->memory().commit_transaction();
    SavedChanges inner = std::move(saved_changes_.back());
    saved_changes_.pop_back();
    if (saved_changes_.empty()) return;
    SavedChanges& outer = saved_changes_.back();
    for (SequenceId id = 0; id < settings_.n_seq_max(); ++id) {
        const auto i = static_cast<size_t>(id);
        if (!inner.sequences[i] || outer.sequences[i]) continue;
        outer.sequences[i] = true;
        outer.adapters.insert(inner.adapters.extract(id));
        outer.control.insert(inner.control.extract(id));
    }
}

std::vector<NodeInfo> Session::graph(int64_t n_tokens, int64_t n_sequences, int64_t n_outputs,
                                     bool embeddings, bool encode) {
    const auto max_tokens = static_cast<int64_t>(engine_.limits().n_tokens);
    check_between<int64_t>("n_tokens", n_tokens, 1, max_tokens);
    check_between<int64_t>("n_seqs", n_sequences, 1,
                           std::min<int64_t>(n_tokens, settings_.n_seq_max()));
    check_between<int64_t>("n_outputs", n_outputs, 0, n_tokens);
    use_own_changes();
    StepRunner& runner = encode ? encode_runner() : *decode_runner_;
    return engine_.describe(runner.plan_of(
        static_cast<uint32_t>(n_tokens), static_cast<uint32_t>(n_sequences),
        static_cast<uint32_t>(n_outputs), embeddings ? InputKind::embeddings : InputKind::tokens));
}

std::vector<Engine::ValueInfo> Session::value_infos() {
    std::vector<Engine::ValueInfo> values;
    for (StepRunner* runner : runners())
        for (const Engine::ValueInfo& value : runner->values())  // two graphs may share names
            if (std::ranges::find(values, value.name, &Engine::ValueInfo::name) == values.end())
                values.push_back(value);
    return values;
}

// "l_out.3" is the same as "blk.3.l_out".
Engine::ValueInfo Session::find_value(std::string_view what, const std::string& name) {
    const std::vector<Engine::ValueInfo> known = value_infos();
    const auto found = std::ranges::find_if(known, [&](const Engine::ValueInfo& value) {
        return full_name(value.name) == name || short_name(value.name) == name;
    });
    if (found == known.end())
        throw InvalidArgument(
            text(what, ": \"", name, "\" is not a value of this model; see value_names()"));
    return *found;
}

std::vector<std::string> Session::value_names() {
    std::vector<std::string> result;
    for (const Engine::ValueInfo& value : value_infos()) result.push_back(full_name(value.name));
    return result;
}

std::vector<std::string> Session::start_capture(std::span<const std::string> wanted,
                                                std::shared_ptr<CaptureSink> sink) {
    if (attachments_.recorder.active())
        throw InvalidArgument("capture: another capture of this context is open");
    std::vector<ValueName> set;
    std::vector<PatternSource> patterns;
    for (const std::string& name : wanted) {
        const Engine::ValueInfo value = find_value("capture", name);
        set.push_back(value.name);
        if (value.pattern) patterns.push_back(*value.pattern);
    }
    std::ranges::sort(set);
    const auto repeated = std::ranges::unique(set);
    set.erase(repeated.begin(), repeated.end());
    std::vector<std::string> result;
    for (const ValueName& name : set) result.push_back(full_name(name));
    Recorder::Target target{engine_.capture_set(set), set.size(), std::move(sink), {}};
    const auto weight = [&](WeightId id) { return weight_floats(model_->weights(), id); };
    for (const PatternSource& source : patterns) {
        const auto index = std::ranges::lower_bound(set, source.name) - set.begin();
        target.patterns.try_emplace(static_cast<size_t>(index), source, weight);
    }
    attachments_.recorder.start(std::move(target));
    return result;
}

std::vector<std::string> Session::gradient_names() {
    std::vector<std::string> result;
    for (const ValueName& name : decode_runner_->gradient_values())
        result.push_back(full_name(name));
    return result;
}

std::vector<std::string> Session::start_gradients(std::span<const std::string> wanted,
                                                  std::shared_ptr<Loss> loss) {
    if (attachments_.gradients.active())
        throw InvalidArgument("gradients: other gradients of this context are open");
    std::vector<ValueName> chosen;
    std::vector<std::string> result;
    for (const ValueName& name : decode_runner_->gradient_values()) {
        if (std::ranges::find(wanted, full_name(name)) == wanted.end()) continue;
        chosen.push_back(name);
        result.push_back(full_name(name));
    }
    for (const std::string& name : wanted)
        if (std::ranges::find(result, name) == result.end())
            throw InvalidArgument(text("gradients: \"", name, "\" is not a value of decode()"));
    use_own_changes();
    decode_runner_->check_gradients(chosen, model_->info().arch);
    attachments_.gradients.start(std::move(chosen), std::move(loss), model_->info().arch);
    return result;
}

}  // namespace plait
