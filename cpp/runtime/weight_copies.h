// The packed copies of one file's weights, one store for all backends that pack alike.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace plait {

// Safe to call from several threads. Stores live as long as this.
class WeightCopies {
public:
    explicit WeightCopies(std::shared_ptr<const WeightSource> source)
        : source_(std::move(source)) {}

    std::shared_ptr<WeightStore> on(Backend& backend) {
        const std::lock_guard lock(mutex_);
        std::shared_ptr<WeightStore>& store = stores_[backend.packing()];
        if (!store) store = backend.make_weight_store(source_);
        return store;
    }

private:
    std::shared_ptr<const WeightSource> source_;
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<WeightStore>> stores_;
};

}  // namespace plait
