// The times at which each node ran on each thread. Recorded only while tracing is on.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace plait {

struct TraceEvent {
    NodeId node = 0;  // among all nodes of the plan
    int32_t thread = 0;
    int64_t begin_ns = 0, end_ns = 0;  // of the steady clock
};

// Each thread writes to its own list.
class Trace {
public:
    explicit Trace(int n_threads) : by_thread_(static_cast<size_t>(n_threads)) {}

    static int64_t now() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    // Consecutive chunks of one node on one thread become one event. Drops events that there is no
    // memory for, since it must not throw where kernels run.
    void add(NodeId node, int thread, int64_t begin_ns) noexcept {
        try {
            std::vector<TraceEvent>& events = by_thread_[static_cast<size_t>(thread)].events;
            if (!events.empty() && events.back().node == node)
                events.back().end_ns = now();
            else
                events.push_back({node, thread, begin_ns, now()});
        } catch (...) {
        }
    }
    template <typename Body>
    void take(Body body) {
        for (List& list : by_thread_) {
            for (const TraceEvent& event : list.events) body(event);
            list.events.clear();
        }
    }

private:
    struct alignas(64) List {
        std::vector<TraceEvent> events;
    };
    std::vector<List> by_thread_;
};

}  // namespace plait
