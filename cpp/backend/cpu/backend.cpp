#include "backend/cpu/backend.h"

#include <algorithm>

#include "backend/bind_nodes.h"
#include "backend/cpu/executable.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/weights/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "platform/process.h"

namespace plait::cpu {
namespace {

int checked_threads(std::optional<int> asked) {
    if (!asked) return platform::usable_cores();
    if (*asked < 1 || *asked > 1024)
        throw InvalidArgument(text("threads: expected 1 to 1024, got ", *asked));
    return *asked;
}

}  // namespace

CpuBackend::CpuBackend(const CpuOptions& options)
    : isa_(choose_isa(options.isa ? std::optional<std::string_view>(*options.isa) : std::nullopt)),
      threads_(checked_threads(options.threads)) {}

std::string CpuBackend::packing() const { return text("cpu:", to_string(isa_)); }

// The caller may free the buffer that the new one replaces, so late threads must have left it.
std::unique_ptr<Buffer> CpuBackend::allocate(uint64_t bytes) {
    threads_.settle();
    return allocate_host(bytes);
}

std::shared_ptr<WeightStore> CpuBackend::make_weight_store(
    std::shared_ptr<const WeightSource> source) {
    return std::make_shared<CpuWeights>(std::move(source), isa_);
}

bool CpuBackend::supports(const Graph&, NodeId) const { return true; }

std::unique_ptr<LoweredGraph> CpuBackend::lower(Graph graph, bool fuse) {
    Lowered lowered = cpu::lower(std::move(graph), isa_, threads_.size(), fuse);
    return std::make_unique<CpuGraph>(std::move(lowered.nodes), std::move(lowered.outputs),
                                      threads_, isa_);
}

std::unique_ptr<Executable> CpuGraph::compile(const Segment& segment) {
    Binder binder(nodes_, segment, isa_, threads_.size());
    bind_nodes(std::span<const CpuNode>(nodes_), segment.nodes, binder);
    return std::make_unique<CpuExecutable>(threads_, binder.take(), segment.scratch_offset);
}

}  // namespace plait::cpu
