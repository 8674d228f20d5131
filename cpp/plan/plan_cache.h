// Plans by key, so that a step of a known shape builds nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "graph/plan_key.h"
#include "plan/plan.h"

namespace plait {

// Why a plan had to be built.
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

// Keeps the least recently used out beyond `most_bytes`.
class PlanCache {
public:
    explicit PlanCache(uint64_t most_bytes) : most_bytes_(most_bytes) {}

    Plan* find(const PlanKey& key);
    // Why `key`, which find() did not know, is missing.
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
    uint64_t most_bytes_;
    uint64_t bytes_ = 0;
    uint64_t clock_ = 0;
    std::unordered_map<PlanKey, Entry, PlanKeyHash> entries_;
    std::unordered_set<PlanKey, PlanKeyHash> evicted_;
};

}  // namespace plait
