// The CPU backend. Each context has its own, with its own threads.
#pragma once

#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/threads.h"

namespace plait::cpu {

struct CpuOptions {
    std::optional<int> threads;      // nullopt: platform::usable_cores()
    std::optional<std::string> isa;  // limits the choice, see choose_isa(); nullopt: no limit
};

class CpuBackend final : public Backend {
public:
    explicit CpuBackend(const CpuOptions& options);

    std::string_view name() const override { return "cpu"; }
    std::string packing() const override;
    int n_threads() const override { return threads_.size(); }
    bool invariant() const override { return isa_->is_invariant(); }
    std::unique_ptr<Buffer> allocate(uint64_t bytes) override;
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override;
    bool supports(const Graph& graph, NodeId node) const override;
    std::unique_ptr<LoweredGraph> lower(Graph graph, bool fuse) override;

    Isa isa() const { return isa_; }

private:
    Isa isa_;
    Threads threads_;
};

}  // namespace plait::cpu
