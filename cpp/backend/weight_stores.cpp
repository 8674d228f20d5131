#include "backend/weight_stores.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

WeightId WeightStores::add(StoresByDevice stores) {
    const WeightId first = count_;
    const size_t n = stores.front()->source().count();
    if (n >= UINT32_MAX - first)
        throw UnsupportedError("the model and its adapters have too many weights together");
    count_ += static_cast<WeightId>(n);
    entries_.push_back({first, std::move(stores)});
    return first;
}

WeightStores::Place WeightStores::find(WeightId id, size_t device) const {
    PLAIT_CHECK(id < count_);
    const auto after = std::ranges::upper_bound(entries_, id, {}, &Entry::first);
    const Entry& entry = *std::prev(after);
    return {*entry.stores[device], id - entry.first};
}

const std::string& WeightStores::name(WeightId id) const {
    const Place place = find(id, 0);
    return place.store.source().name(place.id);
}

}  // namespace plait
