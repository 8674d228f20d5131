// Counters and times of a context since its construction or the last reset.
#pragma once

#include <array>
#include <cstdint>

#include "plan/plan_cache.h"

namespace plait {

enum class Phase : uint8_t { place, build, input, compute, output };
inline constexpr size_t kPhases = 5;
inline constexpr size_t kMissReasons = 7;

struct Stats {
    uint64_t tokens = 0;
    uint64_t microbatches = 0;
    uint64_t plans_built = 0;
    uint64_t plans_reused = 0;
    std::array<uint64_t, kMissReasons> misses{};           // by MissReason
    std::array<double, kPhases> seconds{};                 // by Phase
    std::array<uint64_t, DeviceSet::kMaxDevices> nodes{};  // nodes run, by device
    uint64_t rows_copied = 0;  // cache rows copied by sequence copies, shifts and defragmentation
    uint64_t commands_recorded = 0;  // command buffers recorded by devices that replay them
    uint64_t commands_submitted = 0;
};

}  // namespace plait
