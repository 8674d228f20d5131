// Output policies. The policy of a call determines which outputs the graph of a microbatch
// computes, where its rows are written, and what is computed after the last microbatch.
#pragma once

#include <memory>
#include <optional>

#include "batch/prepare.h"
#include "batch/split.h"
#include "graph/plan_key.h"
#include "model/model.h"
#include "runtime/calls.h"
#include "runtime/step/outputs.h"

namespace plait {

class Plans;
class StopSignal;

// Where the run of a microbatch writes its output rows. Null: the graph does not compute them.
struct OutputRows {
    float* logits = nullptr;  // [n_outputs, n_vocab]
    float* hidden = nullptr;  // [n_outputs, width]
};

class OutputPolicy {
public:
    virtual ~OutputPolicy() = default;

    // The outputs of the graph of a microbatch.
    virtual OutputKind graph_outputs() const = 0;
    // The key of the largest graph that finish() runs; nullopt if it runs none.
    virtual std::optional<PlanKey> last_graph() const { return std::nullopt; }
    // The batch with the output flags that this policy needs. Valid until the next call.
    virtual BatchView with_flags(const BatchView& batch) { return batch; }

    // For each call: begin() returns its outputs, still to be filled. For each microbatch, rows()
    // before its run and add() after it. Then finish().
    virtual Outputs begin(const PreparedBatch& batch) = 0;
    virtual OutputRows rows(const Microbatch& microbatch, const Outputs& outputs) = 0;
    virtual void add(const PreparedBatch& batch, const Microbatch& microbatch,
                     Outputs& outputs) = 0;
    virtual void finish(Outputs& outputs, StopSignal* stop) = 0;
};

// The policy of a choice: rows per token, pooled rows per sequence, or scores per sequence. It
// keeps references to `model` and `plans`.
std::unique_ptr<OutputPolicy> make_output_policy(const OutputChoice& choice, const ModelInfo& model,
                                                 Plans& plans);

}  // namespace plait
