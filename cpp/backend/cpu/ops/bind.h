// Binds nodes to kernel calls. Everything that is known before a run is computed here; a run only
// adds base addresses and row counts.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/graph.h"
#include "backend/cpu/kernels/common/table.h"
#include "backend/cpu/weights/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::cpu {

// A kernel with its arguments.
struct KernelCall {
    static constexpr size_t kArgsBytes = 384;
    Kernel kernel{};
    NodeId node = 0;
    uint32_t stage = 0;          // calls of one stage may run at the same time
    uint64_t scratch_bytes = 0;  // per thread
    // Returns whether another thread may repeat tasks of this call in a run; null means never.
    bool (*redo)(const void* args, const Frame& frame) = nullptr;
    alignas(64) std::byte args[kArgsBytes];
};

class Binder {
public:
    Binder(std::span<const CpuNode> nodes, const Segment& segment, Isa isa, int threads);

    const CpuNode& node(NodeId id) const { return nodes_[id]; }
    const TensorType& type(NodeId id) const { return node(id).type; }
    Isa isa() const { return isa_; }
    const Kernels& kernels() const { return kernels_; }
    int n_threads() const { return threads_; }

    // Returns a reference to the first byte of a value that is not a weight.
    Ref ref(NodeId id) const;
    Ref result(const CpuNode& node) const { return ref(id_of(node)); }
    // Returns a reference to the first float of an operand: a weight, a row or a reshaped view of
    // one, or another value.
    Ref operand(NodeId id);
    // Returns a weight matrix packed for the kernels of this instruction set.
    const PackedWeight& matrix(NodeId id);

    template <typename Args>
    KernelCall& call(const CpuNode& node, KernelOf<Args> kernel, const Args& args,
                     uint64_t scratch_bytes = 0) {
        static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= KernelCall::kArgsBytes);
        KernelCall& call = calls_.emplace_back();
        call.kernel = kernel;
        const NodeId id = id_of(node);
        call.node = segment_.first_node + id;
        call.stage = segment_.stages[id];
        call.scratch_bytes = scratch_bytes;
        std::memcpy(call.args, &args, sizeof args);
        return call;
    }
    std::vector<KernelCall> take() { return std::move(calls_); }

private:
    NodeId id_of(const CpuNode& node) const { return static_cast<NodeId>(&node - nodes_.data()); }

    std::span<const CpuNode> nodes_;
    const Segment& segment_;
    Isa isa_;
    const Kernels& kernels_;
    int threads_;
    std::vector<KernelCall> calls_;
};

// Appends the kernel calls of one node. ops/<family>.cpp specialises it for each op that the CPU
// computes, so an op without a kernel does not link.
template <typename T>
void bind(const T& op, const CpuNode& node, Binder& binder);

}  // namespace plait::cpu
