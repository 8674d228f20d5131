// Where each input of a step sits in a context's input buffer: the same place for every plan, sized
// for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace plait {

class InputLayout {
public:
    // Adds room for `bytes`; each id once.
    void add(InputId id, uint64_t bytes);

    uint64_t offset(InputId id) const;    // throws InternalError when absent
    uint64_t capacity(InputId id) const;  // bytes
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

}  // namespace plait
