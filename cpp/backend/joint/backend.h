// Several devices as one: each computes the nodes of its layers, and the host, the last of them,
// what another has no kernel for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/joint/crossings.h"
#include "backend/joint/layer_devices.h"
#include "backend/joint/parts.h"

namespace plait::joint {

class JointBackend final : public Backend {
public:
    // `members`: by Node::device. The last one's memory is the host's.
    JointBackend(std::vector<std::unique_ptr<Backend>> members, LayerDevices layers);

    std::string_view name() const override { return name_; }
    std::vector<std::string> devices() const override { return devices_; }
    std::vector<Backend*> members() override;
    std::string packing() const override;
    int n_threads() const override;
    bool invariant() const override;
    CommandCounts commands() const override;

    std::unique_ptr<Buffer> allocate(uint64_t bytes) override;
    std::unique_ptr<Buffer> allocate_inputs(uint64_t bytes) override;
    std::unique_ptr<Buffer> allocate_cache(uint64_t bytes, int layer) override;
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override;

    bool supports(const Graph& graph, NodeId node) const override;
    void lower(Graph& graph, const Lowering& how) const override;
    std::unique_ptr<Executable> compile(const Segment& segment) override;

private:
    uint8_t host() const { return static_cast<uint8_t>(members_.size() - 1); }
    void assign(Graph& graph, std::span<Buffer* const> storage) const;
    // Makes room for what crosses; plans that know the room before keep it.
    void reserve(const Crossings& crossings);

    std::vector<std::unique_ptr<Backend>> members_;
    LayerDevices layers_;
    std::vector<std::string> devices_;
    std::string name_;
    std::shared_ptr<Integrity> integrity_;
    std::vector<Exchange> exchange_;  // by device; of the host: none
};

}  // namespace plait::joint
