#include "backend/cpu/backend.h"

#include <algorithm>

#include "backend/bind_computed.h"
#include "backend/cpu/executable.h"
#include "backend/cpu/fuse/fuse.h"
#include "backend/cpu/lower.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/ops/bind.h"
#include "backend/cpu/weights/weights.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::cpu {
namespace {

int checked_threads(std::optional<int> asked) {
    if (!asked) return default_threads();
    if (*asked < 1 || *asked > 1024)
        throw InvalidArgument(text("threads: expected 1 to 1024, got ", *asked));
    return *asked;
}

}  // namespace

CpuBackend::CpuBackend(const CpuOptions& options)
    : isa_(choose_isa(options.isa ? std::optional<std::string_view>(*options.isa) : std::nullopt)),
      threads_(checked_threads(options.threads)) {}

std::string CpuBackend::packing() const { return text("cpu:", to_string(isa_)); }

// What it takes the place of may go next, and a late thread may still be looking at that.
std::unique_ptr<Buffer> CpuBackend::allocate(uint64_t bytes) {
    threads_.settle();
    return allocate_host(bytes);
}

std::shared_ptr<WeightStore> CpuBackend::make_weight_store(
    std::shared_ptr<const WeightSource> source) {
    return std::make_shared<CpuWeights>(std::move(source), isa_);
}

bool CpuBackend::supports(const Graph&, NodeId) const { return true; }

void CpuBackend::lower(Graph& graph, const Lowering& how) const {
    cpu::lower(graph, threads_.size(), how.device);
    if (!how.fuse) return;
    for (const Rewrite& rewrite : kRewrites) rewrite.apply(graph, how.device);
}

std::unique_ptr<Executable> CpuBackend::compile(const Segment& segment) {
    Binder binder(segment, isa_, threads_.size());
    for (const NodeId id : segment.nodes) bind_computed(segment.graph.node(id), binder);
    return std::make_unique<CpuExecutable>(threads_, binder.take(), segment.scratch_offset);
}

}  // namespace plait::cpu
