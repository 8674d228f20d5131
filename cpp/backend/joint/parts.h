// A segment cut into parts of one device each, with the copies before and after.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/joint/crossings.h"
#include "backend/joint/executable.h"

namespace plait::joint {

// Host memory through which values leave a device and reach it; see Crossings.
struct Exchange {
    std::shared_ptr<Buffer> sent, received;
};

// A segment as one device sees it.
struct DeviceView {
    Backend& backend;
    Exchange exchange;  // of the host: none
    WeightStores weights;
    std::vector<Buffer*> storage;  // its own caches, null for others; then the exchange
};

std::vector<Part> cut(const Segment& segment, const Crossings& crossings,
                      const std::vector<DeviceView>& devices);

}  // namespace plait::joint
