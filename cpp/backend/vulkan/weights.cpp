#include "backend/vulkan/weights.h"

#include <algorithm>
#include <cstring>

#include "backend/vulkan/device.h"
#include "base/checked.h"
#include "base/error.h"
#include "tensor/convert.h"

namespace plait::vulkan {
namespace {

constexpr uint64_t kGroup = 16;                      // elements that shaders unpack at once
constexpr uint64_t kChunkBytes = uint64_t{8} << 20;  // read from the file at once
constexpr uint64_t kExpandedGroupBytes = sizeof(float) + kGroup;

uint64_t row_bytes_on_device(DType dtype, uint64_t columns) {
    if (is_expanded(dtype)) return columns / kGroup * kExpandedGroupBytes;
    return row_bytes(dtype, is_block_type(dtype) ? columns : align_up(columns, kGroup));
}

// Converts rows from the layout of the file to the layout on the device; see Matrix.
std::vector<std::byte> rows_for_device(DType dtype, uint64_t columns,
                                       std::span<const std::byte> rows) {
    const uint64_t stored = row_bytes(dtype, columns), n = rows.size() / stored;
    const uint64_t on_device = row_bytes_on_device(dtype, columns);
    std::vector<std::byte> result(n * on_device);
    if (!is_expanded(dtype)) {
        for (uint64_t row = 0; row < n; ++row)
            std::memcpy(&result[row * on_device], &rows[row * stored], stored);
        return result;
    }
    std::vector<uint8_t> codes(n * columns);
    std::vector<float> scales(n * columns / kGroup);
    expand(dtype, rows.data(), codes.data(), scales.data(), n * columns);
    for (uint64_t i = 0; i < scales.size(); ++i) {
        std::byte* group = &result[i * kExpandedGroupBytes];
        std::memcpy(group, &scales[i], sizeof(float));
        std::memcpy(group + sizeof(float), &codes[i * kGroup], kGroup);
    }
    return result;
}

}  // namespace

VulkanWeights::VulkanWeights(std::shared_ptr<const WeightSource> source,
                             std::shared_ptr<Device> device)
    : source_(std::move(source)),
      device_(std::move(device)),
      matrices_(source_->count()),
      vectors_(source_->count()) {}

VulkanWeights::~VulkanWeights() = default;

const Matrix& VulkanWeights::matrix(WeightId id) {
    PLAIT_CHECK(id < matrices_.size());
    const std::lock_guard lock(mutex_);
    if (!matrices_[id]) {
        matrices_[id] = upload_matrix(id);
        bytes_ += matrices_[id]->buffer->bytes();
    }
    return matrices_[id]->matrix;
}

std::unique_ptr<VulkanWeights::Uploaded> VulkanWeights::upload_matrix(WeightId id) const {
    const TensorType& type = source_->type(id);
    const Shape& shape = type.shape;
    const auto columns = static_cast<uint64_t>(shape[-1]);
    const uint64_t stored = row_bytes(type.dtype, columns);
    const uint64_t on_device = row_bytes_on_device(type.dtype, columns);
    const uint64_t rows = static_cast<uint64_t>(shape.elements()) / columns;

    auto uploaded = std::make_unique<Uploaded>();
    auto buffer = std::make_unique<DeviceBuffer>(device_, rows * on_device, MemoryKind::device);
    uploaded->matrix = {buffer->address(), on_device,
                        static_cast<uint32_t>(shape.rank > 1 ? shape[-2] : 1),
                        static_cast<uint32_t>(columns), type.dtype};
    const uint64_t step = std::clamp<uint64_t>(kChunkBytes / on_device, 1, rows);
    std::vector<std::byte> chunk(step * stored);
    for (uint64_t first = 0; first < rows; first += step) {
        const auto read = std::span(chunk).first(std::min(step, rows - first) * stored);
        source_->read(id, first * stored, read);
        if (on_device == stored)
            buffer->write(first * on_device, read);
        else
            buffer->write(first * on_device, rows_for_device(type.dtype, columns, read));
    }
    uploaded->buffer = std::move(buffer);
    return uploaded;
}

std::vector<float> VulkanWeights::values(WeightId id) const {
    const TensorType& type = source_->type(id);
    std::vector<std::byte> stored(type.bytes());
    source_->read(id, 0, stored);
    std::vector<float> values(static_cast<size_t>(type.shape.elements()));
    dequantize(type.dtype, stored.data(), values.data(), values.size());
    return values;
}

uint64_t VulkanWeights::vector(WeightId id) {
    PLAIT_CHECK(id < vectors_.size());
    const std::lock_guard lock(mutex_);
    if (!vectors_[id]) {
        const std::vector<float> floats = values(id);
        const std::span bytes = std::as_bytes(std::span(floats));
        auto buffer = std::make_unique<DeviceBuffer>(device_, bytes.size(), MemoryKind::device);
        buffer->write(0, bytes);
        vectors_[id] = std::move(buffer);
        bytes_ += bytes.size();
    }
    return vectors_[id]->address();
}

}  // namespace plait::vulkan
