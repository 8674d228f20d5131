// Which of several devices computes which layer, and which layer a node belongs to.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace plait::joint {

// Devices by number, as in Node::device.
struct LayerDevices {
    std::vector<uint8_t> layers;
    std::vector<uint8_t> caches;  // where a layer's cache is: mostly with the layer
    uint8_t output = 0;           // what comes after the last layer
};

// By node: its layer, or `n_layers` for what comes after the last. A node without a name is of the
// layer of the next one that has one, so what comes before the first layer goes with it.
std::vector<size_t> layers_of(const Graph& graph, size_t n_layers);

}  // namespace plait::joint
