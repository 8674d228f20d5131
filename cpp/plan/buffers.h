// Where values are stored: inputs in one buffer of the context, the values of a graph in an arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "graph/graph.h"

namespace plait {

// The place of each input of a step in a context's input buffer. It is the same for every plan,
// with room for the largest step.
class InputLayout {
public:
    // Appends an input of at most `bytes`. An id can be added once (InternalError).
    void add(InputId id, uint64_t bytes);

    uint64_t offset(InputId id) const;    // InternalError if the input was not added
    uint64_t capacity(InputId id) const;  // in bytes
    uint64_t bytes() const { return bytes_; }
    bool has(InputId id) const;

private:
    struct Entry {
        InputId id;
        uint64_t offset;
        uint64_t bytes;
    };
    const Entry& at(InputId id) const;

    std::vector<Entry> entries_;
    uint64_t bytes_ = 0;
};

// The places of a graph's values. Values whose lifetimes do not overlap may share bytes of the
// arena.
struct Buffers {
    std::vector<Place> places;  // by node
    uint64_t arena_bytes = 0;
};

// Values that are alive in the same stage never overlap. GraphOutputs are stored in the caller's
// buffers. Captured values live until the run ends. `exchanged`: by node, the places of values that
// the graph sends or receives, nowhere for all others; may be empty.
Buffers place_values(const LoweredGraph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs, std::span<const Place> exchanged = {});

// By node, the last node that reads its bytes, through aliases; itself if there is none.
std::vector<NodeId> last_uses(const LoweredGraph& graph);

}  // namespace plait
