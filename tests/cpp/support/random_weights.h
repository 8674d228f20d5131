// Weights in memory: random bytes of any type, with scales of ordinary size.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/half.h"
#include "tensor/weight_source.h"

namespace plait::test {

inline void put_f16(std::byte* at, float value) {
    const uint16_t half = f32_to_f16(value);
    std::memcpy(at, &half, sizeof half);
}

// Gives the scales of a block, and its minima, what next() returns; those that are no f16 are set
// to ordinary sizes.
template <typename Next>
void put_scales(DType dtype, std::byte* block, Next next) {
    const auto put = [&](std::initializer_list<size_t> offsets) {
        for (const size_t offset : offsets) put_f16(block + offset, next());
    };
    switch (dtype) {
    case DType::q4_1:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k: return put({0, 2});
    case DType::q2_k: return put({80, 82});
    case DType::q3_k: return put({108});
    case DType::q6_k: return put({208});
    case DType::tq1_0: return put({52});
    case DType::tq2_0: return put({64});
    case DType::iq1_m: {  // a nibble in the upper half of every second byte of the last eight
        const uint16_t half = f32_to_f16(next());
        for (int i = 0; i < 4; ++i) {
            std::byte& at = block[49 + 2 * i];
            at = (at & std::byte{15}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
        }
        return;
    }
    case DType::mxfp4: block[0] = std::byte{124}; return;
    case DType::nvfp4: std::fill_n(block, 4, std::byte{0x38}); return;
    default: return put({0});
    }
}

inline std::vector<std::byte> random_bytes(const TensorType& type, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> bytes(type.bytes());
    if (!is_block_type(type.dtype)) {
        for (size_t i = 0; i < static_cast<size_t>(type.shape.elements()); ++i) {
            const float value = normal(random);
            if (type.dtype == DType::f32) std::memcpy(&bytes[4 * i], &value, 4);
            if (type.dtype == DType::f16) put_f16(&bytes[2 * i], value);
            const uint16_t half = f32_to_bf16(value);
            if (type.dtype == DType::bf16) std::memcpy(&bytes[2 * i], &half, 2);
        }
        return bytes;
    }
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const size_t block = info(type.dtype).block_bytes;
    for (size_t at = 0; at < bytes.size(); at += block)
        put_scales(type.dtype, &bytes[at], [&] { return 0.01f * normal(random); });
    return bytes;
}

class RandomWeights final : public WeightSource {
public:
    WeightId add(const TensorType& type) {
        tensors_.push_back({"w" + std::to_string(tensors_.size()), type,
                            random_bytes(type, static_cast<uint32_t>(tensors_.size() + 1))});
        return static_cast<WeightId>(tensors_.size() - 1);
    }
    const std::vector<std::byte>& bytes(WeightId id) const { return tensors_[id].bytes; }
    std::vector<std::byte>& bytes(WeightId id) { return tensors_[id].bytes; }

    size_t count() const override { return tensors_.size(); }
    const std::string& name(WeightId id) const override { return tensors_[id].name; }
    const TensorType& type(WeightId id) const override { return tensors_[id].type; }
    void read(WeightId id, uint64_t begin, std::span<std::byte> target) const override {
        largest_read = std::max<uint64_t>(largest_read, target.size());
        if (begin >= fail_at) throw ModelError("the file ended");
        PLAIT_CHECK(begin + target.size() <= tensors_[id].bytes.size());
        std::memcpy(target.data(), tensors_[id].bytes.data() + begin, target.size());
    }

    mutable std::atomic<uint64_t> largest_read{0};
    uint64_t fail_at = UINT64_MAX;  // reads from here on throw

private:
    struct Tensor {
        std::string name;
        TensorType type;
        std::vector<std::byte> bytes;
    };
    std::vector<Tensor> tensors_;
};

}  // namespace plait::test
