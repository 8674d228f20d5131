// A file's weights on several devices: each has copies of those that its own nodes read.
#pragma once

#include <memory>
#include <vector>

#include "backend/weight_stores.h"

namespace plait::joint {

class JointWeights final : public WeightStore {
public:
    explicit JointWeights(std::vector<std::shared_ptr<WeightStore>> parts)
        : parts_(std::move(parts)) {}

    const std::shared_ptr<WeightStore>& on(size_t device) const { return parts_[device]; }
    uint64_t bytes() const override {
        uint64_t all = 0;
        for (const auto& part : parts_) all += part->bytes();
        return all;
    }
    const WeightSource& source() const override { return parts_.front()->source(); }

private:
    std::vector<std::shared_ptr<WeightStore>> parts_;  // by device
};

}  // namespace plait::joint
