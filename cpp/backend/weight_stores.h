// The weights that a graph can name: those of the model, then those of adapters, numbered through.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/weight_source.h"

namespace plait {

// The packed copies of a file's weights on one kind of device, made one by one when a plan first
// needs them. Safe to share between contexts.
class WeightStore {
public:
    virtual ~WeightStore() = default;
    virtual uint64_t bytes() const = 0;  // of the copies made so far
    virtual const WeightSource& source() const = 0;
};

class WeightStores {
public:
    explicit WeightStores(std::shared_ptr<WeightStore> model) { add(std::move(model)); }

    // Returns the number of its first weight.
    WeightId add(std::shared_ptr<WeightStore> store);

    // The store that has a weight, and the weight's number there.
    struct Place {
        WeightStore& store;
        WeightId id;
    };
    Place find(WeightId id) const;
    const std::string& name(WeightId id) const;
    // The same weights under the same numbers, of what part(store) gives for each store.
    template <typename Part>
    WeightStores parts(Part part) const {
        WeightStores mine(part(*entries_.front().store));
        for (size_t i = 1; i < entries_.size(); ++i) mine.add(part(*entries_[i].store));
        return mine;
    }

private:
    struct Entry {
        WeightId first;
        std::shared_ptr<WeightStore> store;
    };
    std::vector<Entry> entries_;  // by first
    WeightId count_ = 0;
};

}  // namespace plait
