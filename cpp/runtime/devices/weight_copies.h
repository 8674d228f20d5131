// The packed copies of one file's weights, one store for all backends that pack alike.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_set.h"

namespace plait {

// Safe to call from several threads. Stores live as long as this.
class WeightCopies {
public:
    explicit WeightCopies(std::shared_ptr<const WeightSource> source)
        : source_(std::move(source)) {}

    // The copies on each device.
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
