// The packed copies of the weights of one file. Backends with the same packing share a store.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_set.h"

namespace plait {

// Thread-safe. Stores live as long as this object.
class WeightCopies {
public:
    explicit WeightCopies(std::shared_ptr<const WeightSource> source)
        : source_(std::move(source)) {}

    // Returns the store of each device; creates missing ones.
    StoresByDevice on(const DeviceSet& devices) {
        const std::lock_guard lock(mutex_);
        StoresByDevice stores;
        for (size_t d = 0; d < devices.size(); ++d) stores.push_back(on(devices[d]));
        return stores;
    }

private:
    const std::shared_ptr<WeightStore>& on(Backend& backend) {
        std::shared_ptr<WeightStore>& store = stores_[backend.packing()];
        if (!store) store = backend.make_weight_store(source_);
        return store;
    }

    std::shared_ptr<const WeightSource> source_;
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<WeightStore>> stores_;
};

}  // namespace plait
