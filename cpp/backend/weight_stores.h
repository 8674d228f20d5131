// The weights that a graph can refer to: those of the model, then those of each adapter.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/weight_source.h"

namespace plait {

// Copies of a file's weights on one kind of device. Each weight is packed when a plan first needs
// it. Contexts may share a store.
class WeightStore {
public:
    virtual ~WeightStore() = default;
    virtual uint64_t bytes() const = 0;  // of the copies made so far
    virtual const WeightSource& source() const = 0;
};

// The copies of one file's weights on each device.
using StoresByDevice = std::vector<std::shared_ptr<WeightStore>>;

class WeightStores {
public:
    explicit WeightStores(StoresByDevice model) { add(std::move(model)); }

    // Returns the id of its first weight.
    WeightId add(StoresByDevice stores);

    // The store of a device that holds a weight, and the weight's id in that store.
    struct Place {
        WeightStore& store;
        WeightId id;
    };
    Place find(WeightId id, size_t device) const;
    const std::string& name(WeightId id) const;

private:
    struct Entry {
        WeightId first;
        StoresByDevice stores;
    };
    std::vector<Entry> entries_;  // by first
    WeightId count_ = 0;
};

// The weights of a graph on one device. Its backend made the stores, so it knows their class.
class DeviceWeights {
public:
    DeviceWeights(const WeightStores& weights, size_t device)
        : weights_(&weights), device_(device) {}
    // Returns the store that holds a weight, and the weight's id in that store.
    template <std::derived_from<WeightStore> Store>
    std::pair<Store&, WeightId> find(WeightId id) const {
        const WeightStores::Place place = weights_->find(id, device_);
        return {dynamic_cast<Store&>(place.store), place.id};
    }

private:
    const WeightStores* weights_;
    size_t device_;
};

}  // namespace plait
