// The place of each input of a step in a context's input buffer. It is the same for every plan, with
// room for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace plait {

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

}  // namespace plait
