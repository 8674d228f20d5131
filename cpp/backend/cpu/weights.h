// A model's weights in the layouts that the CPU kernels stream best.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/packed.h"

namespace plait::cpu {

// Packs a weight the first time someone asks for it and keeps the copy. Packing is a permutation
// (or, for vectors, a conversion to f32): every stored value can be read back exactly.
class CpuWeights final : public WeightStore {
public:
    CpuWeights(std::shared_ptr<const WeightSource> source, Isa isa);
    ~CpuWeights() override;

    uint64_t bytes() const override;
    const WeightSource& source() const { return *source_; }

    // A matrix [out, in], or a stack of them [experts, out, in], packed for linear, expert_linear
    // and embed. Valid as long as the store. Packs in parallel on `threads` threads the first time.
    const PackedWeight& matrix(WeightId id, int threads);
    // A vector (or any small tensor) as f32 values, row by row.
    const float* vector(WeightId id);

private:
    struct Entry;
    std::shared_ptr<const WeightSource> source_;
    Isa isa_;
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Entry>> entries_;  // by id; null until asked for
};

}  // namespace plait::cpu
