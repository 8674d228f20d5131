// Computes gradients of the calls of a context: keeps the values of a step that derivatives read,
// evaluates a scalar of the logits after its run, and walks its graph backwards.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradient/gradient.h"
#include "graph/plan_key.h"
#include "runtime/step/recorder.h"

namespace plait {

class Engine;
class Plans;
class StopSignal;

// A user-defined scalar of the logits of one call.
class Loss {
public:
    virtual ~Loss() = default;
    // Returns the scalar, and writes its derivative to `gradient`. Both arrays are [rows, n_vocab],
    // with a row for each output of the call, in batch order.
    virtual double evaluate(std::span<const float> logits, std::span<float> gradient,
                            int64_t rows) = 0;
};

// The gradients of one call. The rows of each value are in batch order.
struct GradientCall {
    double loss = 0.0;
    CapturedCall gradients;  // indexed like the names
};

class Gradients {
public:
    // Computes the gradients of these values in every later call.
    void start(std::vector<ValueName> names, std::shared_ptr<Loss> loss, std::string architecture);
    std::shared_ptr<Loss> stop();  // returns the loss; null if none is active
    bool active() const { return loss_ != nullptr; }

    // For each call: begin() before its tokens are placed, prepare() before the run of its only
    // microbatch, compute() after the run, commit(). Calls without commit() are discarded.
    //
    // begin() throws InvalidArgument if the call has more than one microbatch or no logits.
    void begin(std::span<const Microbatch> microbatches, OutputKind computed, uint32_t max_tokens);
    // Returns the key of the plan that keeps the values. Throws UnsupportedError if a node between
    // the names and the logits has no derivative.
    PlanKey prepare(const Plans& plans, PlanKey key);
    // `outputs`: the rows of the run by OutputId, of which the logits are not null.
    void compute(const Plan& plan, const Plans& plans, const Microbatch& microbatch,
                 std::span<const float* const> outputs, StopSignal* stop);
    void commit() noexcept { calls_.push_back(std::move(call_)); }

    std::vector<GradientCall> take() { return std::exchange(calls_, {}); }

private:
    std::vector<ValueName> names_;
    std::shared_ptr<Loss> loss_;
    std::string architecture_;
    std::vector<GradientCall> calls_;
    // Of the current call.
    Graph graph_;
    GradientPlan gradient_plan_;
    size_t first_kept_ = 0;  // names of the capture set before the kept values
    GradientCall call_;
};

// Plans the gradient of the graph's logits with respect to these names, and throws as
// Gradients::prepare().
GradientPlan plan_gradients(const Graph& graph, std::span<const ValueName> names,
                            std::string_view architecture);

}  // namespace plait
