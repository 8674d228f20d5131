// From a node to a kernel call: every op has a bind() in ops/<op>.cpp that fills one Step. All that
// can be known before a run is settled here; a run only adds base addresses and counts.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/bind_computed.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/table.h"
#include "backend/cpu/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::cpu {

// One bound kernel call.
struct Step {
    static constexpr size_t kArgsBytes = 384;
    Kernel kernel{};
    NodeId node = 0;
    uint32_t stage = 0;          // steps of one stage may run at the same time
    uint64_t scratch_bytes = 0;  // per thread
    // Whether, in a run, another thread may do tasks over again; or null: never.
    bool (*redo)(const void* args, const Frame& frame) = nullptr;
    alignas(64) std::byte args[kArgsBytes];
};

class Binder {
public:
    Binder(const Segment& segment, Isa isa, int threads);

    const Graph& graph() const { return segment_.graph; }
    const TensorType& type(NodeId id) const { return graph().node(id).type; }
    Isa isa() const { return isa_; }
    const Kernels& kernels() const { return kernels_; }
    int n_threads() const { return threads_; }

    // First byte of a value (activations, inputs, outputs, caches).
    Ref ref(NodeId id) const;
    // A weight in the form the kernels of this instruction set read.
    const PackedWeight& matrix(NodeId id);  // for products and embed
    Ref vector(NodeId id);                  // f32 values: norms, biases, factors

    template <typename Args>
    Step& step(const Node& node, KernelOf<Args> kernel, const Args& args,
               uint64_t scratch_bytes = 0) {
        static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= Step::kArgsBytes);
        Step& step = steps_.emplace_back();
        step.kernel = kernel;
        step.node = static_cast<NodeId>(&node - graph().nodes().data());
        step.stage = segment_.stages[step.node];
        step.scratch_bytes = scratch_bytes;
        std::memcpy(step.args, &args, sizeof args);
        return step;
    }
    std::vector<Step> take() { return std::move(steps_); }

private:
    const Segment& segment_;
    Isa isa_;
    const Kernels& kernels_;
    int threads_;
    std::vector<Step> steps_;
};

// Weights, storage, inputs and views of them need no step.
template <typename Op>
NoKernel bind(const Op& op, const Node&, Binder&) {
    throw UnsupportedError(text("no CPU kernel for ", op_name(op)));
}
void bind(const AddOp&, const Node&, Binder&);
void bind(const ActivateOp&, const Node&, Binder&);
void bind(const AttendOp&, const Node&, Binder&);
void bind(const AttendSplitsOp&, const Node&, Binder&);
void bind(const ClampedSwigluOp&, const Node&, Binder&);
void bind(const CombineOp&, const Node&, Binder&);
void bind(const ConcatOp&, const Node&, Binder&);
void bind(const CopyRowsOp&, const Node&, Binder&);
void bind(const DeltaRuleOp&, const Node&, Binder&);
void bind(const EmbedOp&, const Node&, Binder&);
void bind(const ExpertLinearOp&, const Node&, Binder&);
void bind(const GateOp&, const Node&, Binder&);
void bind(const GateQuantizeOp&, const Node&, Binder&);
void bind(const HeadLinearOp&, const Node&, Binder&);
void bind(const L2NormOp&, const Node&, Binder&);
void bind(const LayerNormOp&, const Node&, Binder&);
void bind(const LinearOp&, const Node&, Binder&);
void bind(const LinearAddOp&, const Node&, Binder&);
void bind(const NormQuantizeOp&, const Node&, Binder&);
void bind(const MulOp&, const Node&, Binder&);
void bind(const QuantizeRowsOp&, const Node&, Binder&);
void bind(const RmsNormOp&, const Node&, Binder&);
void bind(const RopeOp&, const Node&, Binder&);
void bind(const RopeTableOp&, const Node&, Binder&);
void bind(const RotateRowsOp&, const Node&, Binder&);
void bind(const RouteOp&, const Node&, Binder&);
void bind(const RowSumOp&, const Node&, Binder&);
void bind(const ScaleOp&, const Node&, Binder&);
void bind(const SelectRowsOp&, const Node&, Binder&);
void bind(const SelectiveScanOp&, const Node&, Binder&);
void bind(const ShortConvOp&, const Node&, Binder&);
void bind(const SliceOp&, const Node&, Binder&);
void bind(const SoftcapOp&, const Node&, Binder&);
void bind(const SsdScanOp&, const Node&, Binder&);
void bind(const StoreRowsOp&, const Node&, Binder&);
void bind(const SubOp&, const Node&, Binder&);
void bind(const TokenShiftOp&, const Node&, Binder&);
void bind(const Wkv6Op&, const Node&, Binder&);
void bind(const Wkv7Op&, const Node&, Binder&);

}  // namespace plait::cpu
