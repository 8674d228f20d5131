// Values that one device computes and another reads, planned when a graph is compiled: where they
// are on each, and what is copied when.
//
// On the host a value is at its place in the arena. Another device computes what others read into
// host memory that it can write ("sent"), and reads what others compute from host memory that it
// can read ("received"), so a copy is a memcpy and no command of its own. A device finds both behind
// the caches: ops::Storage n_storage and n_storage + 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace plait::joint {

struct Crossing {
    NodeId value = 0;
    uint8_t to = 0;
    bool edited = false;  // made between two executables; see ops::Edit
    Place from_place;     // on its own device; an output is with the caller when its run has ended
    Place to_place;
};

struct Crossings {
    std::vector<uint32_t> runs;              // by node, never falling: those of one device
    std::vector<NodeId> root;                // by node: whose bytes it is
    std::vector<std::vector<Place>> places;  // by device, by node
    std::vector<Crossing> copies;            // by value
    std::vector<uint64_t> sent, received;    // by device: bytes
};

// `places`: as planned for one device. `host`: the number of the device whose memory is the host's,
// the last. Edits and captured values are read there.
Crossings find_crossings(const Graph& graph, std::span<const Place> places, size_t n_storage,
                         uint8_t host);

}  // namespace plait::joint
