#include "plan/plan_cache.h"

#include <algorithm>

namespace plait {
namespace {

PlanKey without_buckets(PlanKey key) {
    key.n_tokens = key.n_sequences = key.n_outputs = key.n_moves = 0;
    key.single = false;
    key.output = OutputKind::none;
    return key;
}

// The key of the model without adapters, edits, captures and control vectors.
PlanKey without_sets(PlanKey key) {
    key = without_buckets(key);
    key.adapters = key.edits = key.captures = 0;
    key.control = false;
    return key;
}

}  // namespace

const char* to_string(MissReason reason) {
    switch (reason) {
    case MissReason::first_use: return "first use";
    case MissReason::new_bucket: return "new bucket";
    case MissReason::new_adapters: return "new adapter set";
    case MissReason::new_captures: return "new capture set";
    case MissReason::new_edits: return "new edit set";
    case MissReason::reuse_off: return "reuse off";
    case MissReason::evicted: return "evicted";
    }
    return "";
}

Plan* PlanCache::find(const PlanKey& key) {
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return nullptr;
    entry->second.last_used = ++clock_;
    return entry->second.plan.get();
}

MissReason PlanCache::reason(const PlanKey& key) const {
    if (evicted_.contains(key)) return MissReason::evicted;
    bool same_kind = false, same_adapters = false, same_edits = false;
    for (const auto& [known, entry] : entries_) {
        if (without_buckets(known) == without_buckets(key)) return MissReason::new_bucket;
        if (without_sets(known) != without_sets(key)) continue;
        same_kind = true;
        if (known.adapters != key.adapters) continue;
        same_adapters = true;
        same_edits |= known.edits == key.edits && known.control == key.control;
    }
    if (!same_kind) return MissReason::first_use;
    if (!same_adapters) return MissReason::new_adapters;
    return same_edits ? MissReason::new_captures : MissReason::new_edits;
}

Plan& PlanCache::insert(const PlanKey& key, std::unique_ptr<Plan> plan) {
    const uint64_t added = plan->bytes();
    while (!entries_.empty() && bytes_ + added > max_bytes_) {
        const auto oldest = std::ranges::min_element(
            entries_, {}, [](const auto& entry) { return entry.second.last_used; });
        bytes_ -= oldest->second.plan->bytes();
        evicted_.insert(oldest->first);
        entries_.erase(oldest);
    }
    bytes_ += added;
    Entry& entry = entries_[key];
    entry = {std::move(plan), ++clock_};
    return *entry.plan;
}

void PlanCache::clear() {
    entries_.clear();
    evicted_.clear();
    bytes_ = 0;
}

}  // namespace plait
