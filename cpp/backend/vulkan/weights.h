// The weights of a model in the memory of one device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"

namespace plait::vulkan {

class Device;

// A matrix [rows, columns], or a stack of matrices, stored as in the file with two exceptions,
// because shaders unpack whole groups of 16 elements: rows of unquantised types are padded with
// zeros to whole groups, and the types of tensor/blocks/expanded.h become groups of an f32 scale
// and 16 codes.
struct Matrix {
    uint64_t address = 0;
    uint64_t row_bytes = 0;
    uint32_t rows = 0;  // per matrix
    uint32_t columns = 0;
    DType dtype = DType::f32;
};

// Uploads each weight when it is first used. Thread-safe.
class VulkanWeights final : public WeightStore {
public:
    VulkanWeights(std::shared_ptr<const WeightSource> source, std::shared_ptr<Device> device);
    ~VulkanWeights() override;

    uint64_t bytes() const override { return bytes_; }
    const WeightSource& source() const override { return *source_; }

    // The reference is valid as long as the store. Throws BackendError if there is not enough
    // memory.
    const Matrix& matrix(WeightId id);
    // Returns the device address of a vector or other small tensor, converted to f32, in row-major
    // order.
    uint64_t vector(WeightId id);
    // Returns the same values on the host.
    std::vector<float> values(WeightId id) const;

private:
    struct Uploaded {
        Matrix matrix;
        std::unique_ptr<Buffer> buffer;
    };
    std::unique_ptr<Uploaded> upload_matrix(WeightId id) const;

    std::shared_ptr<const WeightSource> source_;
    std::shared_ptr<Device> device_;
    std::mutex mutex_;
    std::atomic<uint64_t> bytes_{0};
    std::vector<std::unique_ptr<Uploaded>> matrices_;  // by WeightId; null until first used
    std::vector<std::unique_ptr<Buffer>> vectors_;
};

}  // namespace plait::vulkan
