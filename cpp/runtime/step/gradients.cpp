#include "runtime/step/gradients.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "runtime/step/engine.h"
#include "tensor/blocks/hadamard.h"
#include "tensor/convert.h"

namespace plait {
namespace {

// The values of a step that has just run, read from the buffers of its plan.
class StepValues final : public ForwardStep {
public:
    StepValues(const Plans& plans, const Microbatch& microbatch, StopSignal* stop)
        : plans_(plans), microbatch_(microbatch), stop_(stop) {}

    // Copies the values that the plan kept. `kept` are the names of the capture set from
    // `first_kept` on.
    void read(const Plan& plan, std::span<const NodeId> kept, size_t first_kept,
              std::span<const float* const> outputs) {
        for (const CapturedPlace& place : plan.captured()) {
            if (place.index < first_kept) continue;
            Shape shape = place.type.shape;
            if (place.extent != Extent::fixed) shape.dims[0] = rows(place.extent);
            std::vector<float>& values = values_[kept[place.index - first_kept]];
            values.resize(static_cast<size_t>(shape.elements()));
            const auto bytes = std::as_writable_bytes(std::span(values));
            if (place.address != nullptr) {
                std::copy_n(place.address, bytes.size(), bytes.data());
            } else if (place.place.space == Space::output) {
                std::copy_n(outputs[place.place.index], values.size(), values.data());
            } else {
                PLAIT_CHECK(place.place.space == Space::arena);
                plans_.engine().arenas().on(place.device).read(place.place.offset, bytes);
            }
        }
    }

    int64_t rows(Extent extent) const override {
        if (extent == Extent::tokens) return microbatch_.n_tokens();
        return extent == Extent::outputs ? microbatch_.n_outputs() : 1;
    }
    std::span<const float> value(NodeId node) const override { return values_.at(node); }
    std::span<const std::byte> input(InputId id) const override {
        return plans_.engine().written(id);
    }
    void read_weight(WeightId id, int64_t first_row, std::span<float> target) const override {
        const WeightStores::Place place = plans_.engine().weights().find(id, 0);
        const WeightSource& source = place.store.source();
        const TensorType& type = source.type(place.id);
        const auto columns = static_cast<uint64_t>(type.shape[-1]);
        const uint64_t row_bytes = TensorType{type.dtype, {type.shape[-1]}}.bytes();
        std::vector<std::byte> bytes(target.size() / columns * row_bytes);
        source.read(place.id, static_cast<uint64_t>(first_row) * row_bytes, bytes);
        dequantize(type.dtype, bytes.data(), target.data(), target.size());
    }
    void read_cache(uint32_t storage, int32_t row, std::span<float> heads) const override {
        const StorageInfo& info = plans_.layout().storage[storage];
        plans_.storage().read_row(info, storage, row, heads.data());
        if (info.hadamard != 0)  // read_row() has undone the transform, which is its own inverse
            hadamard(heads.data(), static_cast<int64_t>(heads.size()), info.hadamard);
    }
    void check_stop() const override {
        if (stop_ != nullptr && stop_->requested()) throw Interrupted();
    }

private:
    const Plans& plans_;
    const Microbatch& microbatch_;
    StopSignal* stop_;
    std::map<NodeId, std::vector<float>> values_;
};

NodeId logits_of(const Graph& graph) {
    const auto found =
        std::ranges::find(graph.outputs(), OutputId::logits, &GraphOutputs::value_type::first);
    if (found == graph.outputs().end())
        throw InvalidArgument(
            "gradients: the loss is a function of the logits, but this context computes "
            "none; create it without pooling and with the last layer, for a model that has "
            "logits");
    return found->second;
}

// Returns the node of each name.
std::vector<NodeId> nodes_of(const Graph& graph, std::span<const ValueName> names) {
    const std::vector<NamedValue> values = named_values(graph);
    std::vector<NodeId> nodes;
    for (const ValueName& name : names) {
        const auto found = std::ranges::find(values, name, &NamedValue::name);
        if (found == values.end())
            throw InvalidArgument(text("gradients: this call does not compute ", full_name(name)));
        nodes.push_back(found->node);
    }
    return nodes;
}

// Returns the rows of a microbatch in batch order.
Captured in_batch_order(std::vector<float> rows, const Node& node, const Microbatch& microbatch) {
    const bool by_token = node.extent == Extent::tokens;
    const size_t n = by_token ? microbatch.n_tokens() : microbatch.n_outputs();
    Captured result{.shape = node.type.shape};
    result.shape.dims[0] = static_cast<int64_t>(n);
    if (!by_token) {
        result.values = std::move(rows);  // outputs are in batch order
        return result;
    }
    const size_t width = rows.size() / n;
    result.values.resize(rows.size());
    for (size_t i = 0; i < n; ++i)
        std::copy_n(rows.data() + i * width, width,
                    result.values.data() + microbatch.entries[i] * width);
    return result;
}

}  // namespace

GradientPlan plan_gradients(const Graph& graph, std::span<const ValueName> names,
                            std::string_view architecture) {
    return make_gradient_plan(graph, logits_of(graph), nodes_of(graph, names), architecture);
}

void Gradients::start(std::vector<ValueName> names, std::shared_ptr<Loss> loss,
                      std::string architecture) {
    names_ = std::move(names);
    loss_ = std::move(loss);
    architecture_ = std::move(architecture);
    calls_.clear();
}

std::shared_ptr<Loss> Gradients::stop() { return std::exchange(loss_, nullptr); }

void Gradients::begin(std::span<const Microbatch> microbatches, OutputKind computed,
                      uint32_t max_tokens) {
    calls_.reserve(calls_.size() + 1);  // commit() must not fail
    uint64_t n_tokens = 0, n_outputs = 0;
    for (const Microbatch& microbatch : microbatches) {
        n_tokens += microbatch.n_tokens();
        n_outputs += microbatch.n_outputs();
    }
    if (microbatches.size() > 1)
        throw InvalidArgument(text("gradients: the call has ", n_tokens,
                                   " tokens, but gradients are computed in one microbatch of at "
                                   "most n_ubatch = ",
                                   max_tokens, "; create the context with a larger n_ubatch"));
    if ((computed != OutputKind::logits && computed != OutputKind::both) || n_outputs == 0)
        throw InvalidArgument(
            "gradients: the loss is a function of the logits, but this call requests none; add a "
            "token with logits=True, or make the call before the `with` block");
}

PlanKey Gradients::prepare(const Plans& plans, PlanKey key) {
    graph_ = plans.graph(key);
    gradient_plan_ = plan_gradients(graph_, names_, architecture_);
    PLAIT_CHECK(graph_.nodes().size() <= UINT16_MAX);
    const std::span<const ValueName> captured = plans.engine().captures(key.captures);
    std::vector<ValueName> names(captured.begin(), captured.end());
    first_kept_ = names.size();
    for (const NodeId node : gradient_plan_.kept)
        names.push_back({.role = Role::none, .nth = static_cast<uint16_t>(node)});
    key.captures = plans.engine().capture_set(names);
    return key;
}

void Gradients::compute(const Plan& plan, const Plans& plans, const Microbatch& microbatch,
                        std::span<const float* const> outputs, StopSignal* stop) {
    StepValues step(plans, microbatch, stop);
    step.read(plan, gradient_plan_.kept, first_kept_, outputs);
    const Shape row = graph_.node(gradient_plan_.result).type.shape;
    const std::span logits(outputs[static_cast<size_t>(OutputId::logits)],
                           microbatch.n_outputs() * static_cast<size_t>(row[-1]));
    std::vector<float> of_logits(logits.size());
    call_ = {};
    call_.loss = loss_->evaluate(logits, of_logits, microbatch.n_outputs());
    std::vector<std::vector<float>> rows =
        run_gradient(graph_, gradient_plan_, step, std::move(of_logits));
    for (size_t i = 0; i < rows.size(); ++i)
        call_.gradients.push_back(
            in_batch_order(std::move(rows[i]), graph_.node(gradient_plan_.wanted[i]), microbatch));
}

}  // namespace plait
