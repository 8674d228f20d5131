// The packed copies of one file's weights, one store for all backends that pack alike.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/joint/weights.h"

namespace plait {

// Safe to call from several threads. Stores live as long as this.
class WeightCopies {
public:
    explicit WeightCopies(std::shared_ptr<const WeightSource> source)
        : source_(std::move(source)) {}

    // Of a backend that is several devices, each has the store that it would have alone.
    std::shared_ptr<WeightStore> on(Backend& backend) {
        const std::lock_guard lock(mutex_);
        const std::vector<Backend*> members = backend.members();
        if (members.empty()) return alone(backend);
        std::vector<std::shared_ptr<WeightStore>> parts;
        for (Backend* member : members) parts.push_back(alone(*member));
        return std::make_shared<joint::JointWeights>(std::move(parts));
    }

private:
    const std::shared_ptr<WeightStore>& alone(Backend& backend) {
        std::shared_ptr<WeightStore>& store = stores_[backend.packing()];
        if (!store) store = backend.make_weight_store(source_);
        return store;
    }

    std::shared_ptr<const WeightSource> source_;
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<WeightStore>> stores_;
};

}  // namespace plait
