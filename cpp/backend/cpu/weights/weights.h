// A model's weights, packed for the CPU kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/weights/pack.h"
#include "backend/packed_file.h"

namespace plait::cpu {

// Packs a weight when it is first requested and keeps the copy, in memory or in a file that other
// processes share. Packing a matrix is a permutation of its bytes, which pack.h reverses; vectors
// are converted to f32. Safe to call from several threads.
class CpuWeights final : public WeightStore {
public:
    CpuWeights(std::shared_ptr<const WeightSource> source, Isa isa);
    ~CpuWeights() override;

    uint64_t bytes() const override;
    const WeightSource& source() const override { return *source_; }

    // A matrix [out, in], or a stack of them [experts, out, in], packed for products and embed.
    // Valid as long as the store. The first call packs on `threads` threads. Throws BackendError if
    // there is not enough memory, and rethrows exceptions of the source.
    const PackedWeight& matrix(WeightId id, int threads);
    // A vector (or any small tensor) as f32 values, row by row.
    const float* vector(WeightId id);

private:
    struct Matrix {
        std::byte* place = nullptr;  // null if it is in the file
        PackedWeight packed{};       // its data is null until it is packed
    };
    void load(WeightId id, Matrix& matrix, int threads);
    const std::byte* load_from_file(WeightId id, const PackedWeight& layout, int threads);
    void open_file();

    std::shared_ptr<const WeightSource> source_;
    Isa isa_;
    std::mutex mutex_;
    std::atomic<uint64_t> bytes_{0};
    HostPool pool_;
    bool file_opened_ = false;
    std::unique_ptr<PackedFile> file_;               // null if packed copies are not kept
    std::vector<std::unique_ptr<Matrix>> matrices_;  // by id; null until requested
    std::vector<std::unique_ptr<std::vector<float>>> vectors_;
};

}  // namespace plait::cpu
