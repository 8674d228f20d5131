// Plans by key, so that a step of a known shape builds no plan.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "graph/plan_key.h"
#include "plan/plan.h"

namespace plait {

// Why a step needed a new plan.
enum class MissReason : uint8_t {
    first_use,
    new_bucket,
    new_adapters,
    new_captures,
    new_edits,
    reuse_off,
    evicted
};
const char* to_string(MissReason reason);

// Evicts the least recently used plans if they take more than `max_bytes` together.
class PlanCache {
public:
    explicit PlanCache(uint64_t max_bytes) : max_bytes_(max_bytes) {}

    Plan* find(const PlanKey& key);
    // Returns why there is no plan for this key. Call it if find() returned null.
    MissReason reason(const PlanKey& key) const;
    Plan& insert(const PlanKey& key, std::unique_ptr<Plan> plan);
    void clear();

    size_t size() const { return entries_.size(); }
    uint64_t bytes() const { return bytes_; }

private:
    struct Entry {
        std::unique_ptr<Plan> plan;
        uint64_t last_used = 0;
    };
    uint64_t max_bytes_;
    uint64_t bytes_ = 0;
    uint64_t clock_ = 0;
    std::unordered_map<PlanKey, Entry, PlanKeyHash> entries_;
    std::unordered_set<PlanKey, PlanKeyHash> evicted_;
};

}  // namespace plait
