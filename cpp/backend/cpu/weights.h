// A model's weights in the layouts that the CPU kernels stream best.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/products/packed.h"
#include "backend/cpu/memory.h"

namespace plait::cpu {

// Packs a weight the first time someone asks for it and keeps the copy. Packing is a permutation
// (or, for vectors, a conversion to f32): pack/pack.h reads every byte of a matrix back.
// Safe to call from several threads.
class CpuWeights final : public WeightStore {
public:
    CpuWeights(std::shared_ptr<const WeightSource> source, Isa isa);
    ~CpuWeights() override;

    uint64_t bytes() const override;
    const WeightSource& source() const override { return *source_; }

    // A matrix [out, in], or a stack of them [experts, out, in], packed for linear, expert_linear
    // and embed. Valid as long as the store. Packs in parallel on `threads` threads the first time;
    // BackendError where memory does not suffice, and whatever the source throws.
    const PackedWeight& matrix(WeightId id, int threads);
    // A vector (or any small tensor) as f32 values, row by row.
    const float* vector(WeightId id);

private:
    struct Matrix {
        std::byte* place = nullptr;
        PackedWeight packed{};  // without data until it is
    };
    void pack(WeightId id, Matrix& matrix, int threads);

    std::shared_ptr<const WeightSource> source_;
    Isa isa_;
    std::mutex mutex_;
    std::atomic<uint64_t> bytes_{0};
    HostPool pool_;
    std::vector<std::unique_ptr<Matrix>> matrices_;  // by id; null until asked for
    std::vector<std::unique_ptr<std::vector<float>>> vectors_;
};

}  // namespace plait::cpu
