#include "runtime/step/engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "memory/step_memory.h"
#include "runtime/devices/place_layers.h"
#include "runtime/loaded_model.h"
#include "runtime/steering/adapter.h"

namespace plait {
namespace {

constexpr uint64_t kMaxPlanBytes = uint64_t{64} << 20;

}  // namespace

InputLayout Engine::input_layout(const MemoryLayout& memory, const EngineLimits& limits,
                                 int64_t width) {
    using enum InputField;
    const uint64_t by_token = uint64_t{limits.n_tokens} * 4;
    const uint64_t by_sequence = (uint64_t{limits.n_sequences} + 1) * 4;
    InputLayout layout;
    layout.add({tokens}, by_token);
    layout.add({positions}, by_token * static_cast<uint64_t>(limits.build.n_pos_per_token));
    layout.add({token_begin}, by_sequence);
    layout.add({output_tokens}, by_token);
    layout.add({output_begin}, by_sequence);
    layout.add({embeddings}, by_token * static_cast<uint64_t>(width));
    for (uint8_t g = 0; g < memory.groups.size(); ++g) {
        const GroupInfo& group = memory.groups[g];
        for (const InputField field : {from_rows, to_rows, deltas})
            layout.add({field, g}, kMaxMovesPerRun * 4);
        if (group.kind->holds_states) {
            layout.add({read_states, g}, by_sequence);
            layout.add({write_states, g}, by_sequence);
            continue;
        }
        for (const InputField field : {write_rows, first, last, output_first, output_last})
            layout.add({field, g}, by_token);
        layout.add({run_begin, g}, by_sequence);
        layout.add({runs, g}, uint64_t{std::max(group.max_runs, limits.n_rows)} * sizeof(Run));
        if (!group.needs_key_positions) continue;
        layout.add({key_positions, g}, uint64_t{std::max(group.max_runs, limits.n_rows)} * 4);
        layout.add({key_begin, g}, by_sequence);
    }
    return layout;
}

Engine::Engine(std::shared_ptr<const LoadedModel> model, DeviceSet devices,
               const MemoryLayout& layout, const EngineLimits& limits)
    : model_(std::move(model)),
      devices_(std::move(devices)),
      limits_(limits),
      weights_(model_->weights_on(devices_)),
      input_layout_(input_layout(layout, limits, model_->info().input_width(limits.build.layers))),
      inputs_(devices_.allocate_inputs(input_layout_.bytes())),
      plans_(kMaxPlanBytes) {
    devices_.grow(arenas_, std::vector<uint64_t>(devices_.size()));
}

Graph Engine::graph_of(const PlanKey& key, const MemoryLayout& layout) const {
    return model_->model().build(key, layout, limits_.build);
}

std::unique_ptr<Plan> Engine::build(const PlanKey& key, const Storage& storage) {
    const MemoryLayout& layout = storage.layout();
    Graph graph = graph_of(key, layout);
    steering_.rewrite(graph, key);
    if (key.captures != 0) {
        capture(graph, captures(key.captures), key.n_outputs > 0);
        capture_queries(graph, captures(key.captures), layout);
    }
    std::vector<size_t> storage_devices;
    for (const StorageInfo& info : layout.storage)
        storage_devices.push_back(devices_.cache_device(info.id.layer));
    auto plan = std::make_unique<Plan>(
        std::move(graph), PlanTarget{devices_, input_layout_, weights_, storage.buffers(),
                                     storage_devices, limits_.fuse});
    for (const Plan::Part& part : plan->parts()) used_devices_ |= 1u << part.device;
    devices_.grow(arenas_, plan->arena_bytes());
    return plan;
}

Plan& Engine::plan(const PlanKey& key, const Storage& storage) {
    Plan* known = limits_.reuse ? plans_.find(key) : nullptr;
    if (known != nullptr) {
        ++stats_.plans_reused;
        return *known;
    }
    const auto start = std::chrono::steady_clock::now();
    const MissReason reason = limits_.reuse ? plans_.reason(key) : MissReason::reuse_off;
    std::unique_ptr<Plan> built = build(key, storage);
    ++stats_.plans_built;
    ++stats_.misses[static_cast<size_t>(reason)];
    stats_.seconds[static_cast<size_t>(Phase::build)] +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (log_enabled(LogLevel::trace))
        log(LogLevel::trace,
            text("plan: built ", built->n_nodes(), " nodes for ", key.n_tokens, " tokens, ",
                 key.n_outputs, " outputs (", to_string(reason), ")"));
    if (limits_.reuse) return plans_.insert(key, std::move(built));
    single_use_ = std::move(built);
    return *single_use_;
}

std::byte* Engine::input_bytes(InputId id, size_t bytes) {
    PLAIT_CHECK(bytes <= input_layout_.capacity(id));
    record_written({input_layout_.offset(id), bytes});
    return inputs_.host() + input_layout_.offset(id);
}

void Engine::record_written(InputRange written) {
    const auto known = std::ranges::find(written_, written.offset, &InputRange::offset);
    if (known == written_.end())
        written_.push_back(written);
    else
        known->bytes = std::max(known->bytes, written.bytes);
}

void Engine::write_bytes(InputId id, std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(input_bytes(id, bytes.size()), bytes.data(), bytes.size());
}

void Engine::run(Plan& plan, const Counts& counts, float* logits, float* embeddings,
                 StopSignal* stop, Editor* editor) {
    PlanArguments arguments{arenas_, inputs_};
    arguments.editor = editor;
    arguments.outputs[static_cast<size_t>(OutputId::logits)] = reinterpret_cast<std::byte*>(logits);
    arguments.outputs[static_cast<size_t>(OutputId::embeddings)] =
        reinterpret_cast<std::byte*>(embeddings);
    arguments.counts = counts;
    arguments.stop = stop;
    arguments.trace = trace_.get();
    const CommandCounts before = devices_.commands();
    for (const InputRange& written : written_) inputs_.flush(written.offset, written.bytes);
    written_.clear();
    try {
        plan.run(arguments);
    } catch (...) {
        if (trace_) trace_->take([](const TraceEvent&) {});
        throw;
    }
    if (trace_) record_trace(plan);
    for (const Plan::Part& part : plan.parts())
        stats_.nodes[part.device] += part.graph->nodes().size();
    const CommandCounts after = devices_.commands();
    stats_.commands_recorded += after.recorded - before.recorded;
    stats_.commands_submitted += after.submitted - before.submitted;
}

Graph Plans::graph(const PlanKey& key) const {
    Graph graph = engine_.graph_of(key, layout());
    engine_.steering_.rewrite(graph, key);
    return graph;
}

bool Plans::uses(const PlanKey& key, WeightId id) const {
    const Graph graph = engine_.graph_of(key, layout());
    return std::ranges::any_of(graph.nodes(), [id](const Node& node) {
        const auto* weight = std::get_if<ops::Weight>(&node.op);
        return weight != nullptr && weight->id == id;
    });
}

void Plans::reserve(const PlanKey& key) const { engine_.plans_.insert(key, build(key)); }

std::vector<Engine::ValueInfo> Plans::values(const PlanKey& key) const {
    const Graph graph = engine_.graph_of(key, layout());
    std::vector<Engine::ValueInfo> values;
    for (const NamedValue& value : named_values(graph))
        values.push_back({value.name, graph.node(value.node).type});
    for (const PatternSource& source : pattern_sources(graph, layout())) {
        const Shape& queries = graph.node(source.queries).type.shape;
        values.push_back({source.name, {DType::f32, {queries[0], source.params.n_heads}}, source});
    }
    return values;
}

void Engine::add_inputs(InputField field, size_t n, uint64_t bytes) {
    std::vector<InputId> ids;
    for (size_t i = 0; i < n; ++i) ids.push_back({field, static_cast<uint16_t>(i)});
    add_inputs(ids, bytes);
}

void Engine::add_inputs(std::span<const InputId> ids, uint64_t bytes) {
    InputLayout layout = input_layout_;
    for (const InputId id : ids)
        if (!layout.has(id)) layout.add(id, bytes);
    if (layout.bytes() == input_layout_.bytes()) return;
    DeviceBuffers larger = devices_.allocate_inputs(layout.bytes());
    std::vector<InputRange> kept = inputs_to_keep();
    for (const InputRange& range : kept)
        std::memcpy(larger.host() + range.offset, inputs_.host() + range.offset, range.bytes);
    inputs_ = std::move(larger);
    written_ = std::move(kept);
    has_edit_rows_ = false;
    input_layout_ = std::move(layout);
}

// Returns the inputs that are not written again before each run. All others are most of the buffer,
// of which few bytes were ever used: copying them would make them resident.
std::vector<Engine::InputRange> Engine::inputs_to_keep() const {
    std::vector<InputRange> ranges;
    for (const InputField field : {InputField::adapter_scale, InputField::control})
        for (InputId id{field, 0}; input_layout_.has(id); ++id.group)
            ranges.push_back({input_layout_.offset(id), input_layout_.capacity(id)});
    return ranges;
}

void Engine::use_adapters(BySequence<std::vector<ScaledAdapter>> adapters) {
    Steering next = steering_;
    next.use_adapters(std::move(adapters), [&](const Adapter& adapter) {
        return weights_.add(adapter.weights_on(devices_));
    });
    if (next.adapters_differ()) {
        const uint64_t scales = uint64_t{limits_.n_tokens} * sizeof(float);
        for (const InputField field :
             {InputField::adapter_token_scale, InputField::adapter_output_scale})
            add_inputs(field, next.n_scales(), scales);
        for (const InputField field :
             {InputField::adapter_token_picks, InputField::adapter_output_picks})
            add_inputs(field, next.n_scales(), 2 * scales);
    } else {
        const std::vector<float> scales = next.scales();
        add_inputs(InputField::adapter_scale, scales.size(), sizeof(float));
        for (size_t i = 0; i < scales.size(); ++i)
            write(InputId{InputField::adapter_scale, static_cast<uint16_t>(i)},
                  std::span(&scales[i], 1));
    }
    steering_ = std::move(next);
}

void Engine::use_control(std::span<const float> vectors) {
    if (vectors.empty()) return steering_.use_control(0);
    const auto width = static_cast<size_t>(model_->info().width);
    const size_t n_layers = vectors.size() / width;
    add_inputs(InputField::control, n_layers, width * sizeof(float));
    for (size_t i = 0; i < n_layers; ++i)
        write(InputId{InputField::control, static_cast<uint16_t>(i)},
              vectors.subspan(i * width, width));
    steering_.use_control(static_cast<int>(n_layers));
}

void Engine::use_edits(std::vector<NamedEdit> edits) {
    EditPlan next(std::move(edits));
    const uint64_t picks = uint64_t{limits_.n_tokens} * 2 * sizeof(int32_t);
    add_inputs(InputField::edit_picks, next.n_points_with_picks(), picks);
    add_inputs(InputField::edit_output_picks, next.n_points_with_picks(), picks);
    if (next.n_elements() > 0) {
        const EditRowsInput& rows = next.set().rows;
        const InputId id{InputField::edit_rows, rows.group};
        add_inputs(std::span(&id, 1), static_cast<uint64_t>(rows.elements) * sizeof(float));
    }
    steering_.use_edits(std::move(next));
    has_edit_rows_ = false;
}

void Engine::write_edit_rows() {
    if (has_edit_rows_) return;
    const EditPlan& edits = steering_.edits();
    if (edits.n_elements() > 0) {
        const InputId id{InputField::edit_rows, edits.set().rows.group};
        edits.copy_rows(in_place<float>(id, edits.n_elements()));
    }
    has_edit_rows_ = true;
}

void Engine::write_adapter_rows(
    InputId id, size_t n, const std::function<std::span<const SequenceId>(size_t)>& sequences_of) {
    const auto scale_of = [&](size_t row) {
        return steering_.scale_of(id.group, sequences_of(row));
    };
    if (id.field == InputField::adapter_token_scale ||
        id.field == InputField::adapter_output_scale) {
        const std::span<float> scales = in_place<float>(id, n);
        for (size_t row = 0; row < n; ++row) scales[row] = scale_of(row).value_or(0.0f);
        return;
    }
    const std::span<int32_t> picks = in_place<int32_t>(id, 2 * n);
    for (size_t row = 0; row < n; ++row) {
        picks[2 * row] = scale_of(row) ? 0 : -1;
        picks[2 * row + 1] = static_cast<int32_t>(RowChange::add);
    }
}

uint16_t Engine::capture_set(const std::vector<ValueName>& names) {
    const auto known = std::ranges::find(capture_sets_, names);
    const auto number = static_cast<size_t>(known - capture_sets_.begin());
    if (number > UINT16_MAX)
        throw UnsupportedError(text("a context captures at most ", UINT16_MAX, " different sets"));
    if (known == capture_sets_.end()) capture_sets_.push_back(names);
    return static_cast<uint16_t>(number);
}

void Engine::record_trace(const Plan& plan) {
    trace_->take([&](const TraceEvent& event) {
        const LoweredNode& node = plan.node(event.node);
        traced_.push_back({node.info->name,
                           node.role == Role::none ? "" : full_name(node.role, node.layer),
                           event.thread, event.begin_ns, event.end_ns});
    });
}

std::vector<NodeInfo> Engine::describe(const Plan& plan) const {
    return plait::describe(plan, weights_, devices_.names());
}

void Engine::start_trace() {
    if (trace_)
        throw InvalidArgument(
            "trace: another trace of this context is open; leave its `with` block first");
    traced_.clear();
    trace_ = std::make_unique<Trace>(devices_.n_threads());
}

std::vector<TracedNode> Engine::take_trace() {
    trace_.reset();
    return std::exchange(traced_, {});
}

}  // namespace plait
