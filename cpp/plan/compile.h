// Builds the parts and steps of a plan.
#pragma once

#include <utility>
#include <vector>

#include "base/first_fit.h"
#include "plan/buffers.h"
#include "plan/passes.h"
#include "plan/plan.h"

namespace plait {

class PlanCompiler {
public:
    PlanCompiler(Plan& plan, const PlanTarget& target) : plan_(plan), target_(target) {}

    void compile(Graph graph);

private:
    // A value that one part sends and another receives.
    struct Channel {
        size_t from = 0, to = 0;                // parts
        NodeId value = 0;                       // root of the sent value
        NodeId receiver = 0;                    // the Receive node
        uint32_t sent_at = 0, received_at = 0;  // times in the schedule
    };
    // Values of one part that other parts read or write.
    struct Exchanged {
        std::vector<Place> places;  // by node; nowhere for all others
        FirstFit sent, received;
    };

    void lower(Graph graph);
    void find_channels();
    void place_exchanged();
    void place_part(size_t part);
    void compile_segment(const SegmentRange& range);
    std::vector<std::variant<Plan::Edit, Plan::Copy>> host_work(const SegmentRange& range) const;
    void list_captured();

    const LoweredGraph& graph(size_t part) const { return *plan_.parts_[part].graph; }
    bool is_output(size_t part, NodeId root) const;
    // Return the time of the last node that reads the value, and of the node that computes it.
    uint32_t last_use(size_t part, NodeId root) const { return last_use_[part][root]; }
    uint32_t time_of(size_t part, NodeId node) const { return times_[part][node]; }
    Plan::HostPlace host_place(size_t part, NodeId node) const;

    Plan& plan_;
    const PlanTarget& target_;
    std::vector<SegmentRange> order_;
    std::vector<std::vector<uint32_t>> times_;     // by part, by node: index into order_
    std::vector<std::vector<uint32_t>> last_use_;  // by part, by node
    std::vector<Channel> channels_;                // by number
    std::vector<Exchanged> exchanged_;             // by part
    std::vector<Exchange> memory_;                 // by part
    std::vector<std::vector<NodeId>> node_ids_;    // by part: 0, 1, ...
    std::vector<std::vector<Buffer*>> storage_;    // by part
    std::vector<Buffers> buffers_;                 // by part
};

}  // namespace plait
