#include "plan/passes.h"

#include <set>

#include "base/error.h"

namespace plait {
namespace {

class Scheduler {
public:
    explicit Scheduler(std::span<const LoweredGraph* const> graphs)
        : graphs_(graphs), next_(graphs.size()) {}

    std::vector<SegmentRange> run() {
        for (bool progress = true; progress;) {
            progress = false;
            for (size_t part = 0; part < graphs_.size(); ++part)
                while (add_segment(part)) progress = true;
        }
        for (size_t part = 0; part < graphs_.size(); ++part)
            PLAIT_CHECK(next_[part] == graphs_[part]->nodes().size());
        return std::move(order_);
    }

private:
    // Appends the next segment of a part if the values that it receives at its start have been
    // sent.
    bool add_segment(size_t part) {
        const std::span<const LoweredNode> nodes = graphs_[part]->nodes();
        const NodeId begin = next_[part];
        NodeId end = begin;
        // The host nodes at the start. A Send ends them: what the part receives after it may depend
        // on what it sends.
        bool has_host = false;
        for (; end < nodes.size() && nodes[end].info->kind != OpKind::kernel; ++end) {
            if (has_host && std::holds_alternative<ops::Send>(nodes[end].reference)) break;
            if (nodes[end].info->kind != OpKind::host) continue;
            if (!is_ready(nodes[end])) return false;
            has_host = true;
        }
        for (; end < nodes.size(); ++end) {
            const bool receives = std::holds_alternative<ops::Receive>(nodes[end].reference);
            if (nodes[end].info->kind == OpKind::host && !(receives && is_ready(nodes[end]))) break;
        }
        if (end == begin) return false;
        for (const LoweredNode& node : nodes.subspan(begin, end - begin))
            if (const auto* send = std::get_if<ops::Send>(&node.reference))
                sent_.insert(send->channel);
        order_.push_back({part, begin, end});
        next_[part] = end;
        return true;
    }

    bool is_ready(const LoweredNode& host_node) const {
        const auto* receive = std::get_if<ops::Receive>(&host_node.reference);
        return receive == nullptr || sent_.contains(receive->channel);
    }

    std::span<const LoweredGraph* const> graphs_;
    std::vector<NodeId> next_;  // by part: its first node without a segment
    std::set<uint32_t> sent_;   // channels
    std::vector<SegmentRange> order_;
};

}  // namespace

std::vector<SegmentRange> schedule(std::span<const LoweredGraph* const> graphs) {
    return Scheduler(graphs).run();
}

}  // namespace plait
