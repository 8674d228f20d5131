// Which device computes each node of a graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "graph/graph.h"

namespace plait {

// By node. A node runs on the device that holds the cache it accesses, otherwise on the device of
// its layer, or on the host if that device has no kernel for it. UnsupportedError if no device does.
// `storage_devices`: by index of ops::Storage. Only kernel and host nodes have a device.
std::vector<uint8_t> assign_devices(const Graph& graph, const DeviceSet& devices,
                                    std::span<const size_t> storage_devices);

}  // namespace plait
