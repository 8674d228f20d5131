// A model's weights in the memory of one device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"

namespace plait::vulkan {

class Device;

// Where the device finds the first byte of a buffer of ours.
uint64_t address_of(Buffer& buffer);

// A matrix [rows, columns], or a stack of them, as the file stores it, except that shaders unpack
// whole groups of 16 elements: rows of plain floats are padded with zeros to such groups, and the
// types of tensor/blocks/expanded.h are stored as groups of an f32 scale and 16 codes.
struct Matrix {
    uint64_t address = 0;
    uint64_t row_bytes = 0;
    uint32_t rows = 0;  // of each matrix
    uint32_t columns = 0;
    DType dtype = DType::f32;
};

// Uploads a weight the first time someone asks for it. Safe to call from several threads.
class VulkanWeights final : public WeightStore {
public:
    VulkanWeights(std::shared_ptr<const WeightSource> source, std::shared_ptr<Device> device);
    ~VulkanWeights() override;

    uint64_t bytes() const override { return bytes_; }
    const WeightSource& source() const override { return *source_; }

    // Valid as long as the store. BackendError where memory does not suffice.
    const Matrix& matrix(WeightId id);
    // The address of a vector (or any small tensor) as f32 values, row by row.
    uint64_t vector(WeightId id);
    // Those values, on the host.
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
    std::vector<std::unique_ptr<Uploaded>> matrices_;  // by id; null until asked for
    std::vector<std::unique_ptr<Buffer>> vectors_;
};

}  // namespace plait::vulkan
