#include "backend/weight_stores.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

WeightId WeightStores::add(std::shared_ptr<WeightStore> store) {
    const WeightId first = count_;
    const size_t n = store->source().count();
    if (n >= UINT32_MAX - first)
        throw UnsupportedError("a context was given more adapters than it can number weights of");
    count_ += static_cast<WeightId>(n);
    entries_.push_back({first, std::move(store)});
    return first;
}

WeightStores::Place WeightStores::find(WeightId id) const {
    PLAIT_CHECK(id < count_);
    const auto after = std::ranges::upper_bound(entries_, id, {}, &Entry::first);
    const Entry& entry = *std::prev(after);
    return {*entry.store, id - entry.first};
}

const std::string& WeightStores::name(WeightId id) const {
    const Place place = find(id);
    return place.store.source().name(place.id);
}

}  // namespace plait
