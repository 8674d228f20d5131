#include "runtime/step/outputs.h"

#include "base/checked.h"

namespace plait {

Outputs::Outputs(OutputPool& pool, int64_t rows, int64_t n_vocab, int64_t width)
    : rows_(rows), n_vocab_(n_vocab), width_(width) {
    const auto bytes = [&](int64_t columns) { return static_cast<uint64_t>(rows * columns) * 4; };
    embeddings_offset_ = align_up(bytes(1), 64);
    logits_offset_ = align_up(embeddings_offset_ + bytes(width), 64);
    handle_ = pool.take(logits_offset_ + bytes(n_vocab));
}

std::span<float> Outputs::logits() const {
    if (!handle_) return {};
    return {reinterpret_cast<float*>(handle_.data() + logits_offset_),
            static_cast<size_t>(rows_ * n_vocab_)};
}

std::span<float> Outputs::embeddings() const {
    if (!handle_) return {};
    return {reinterpret_cast<float*>(handle_.data() + embeddings_offset_),
            static_cast<size_t>(rows_ * width_)};
}

std::span<int32_t> Outputs::indices() const {
    if (!handle_) return {};
    return {reinterpret_cast<int32_t*>(handle_.data()), static_cast<size_t>(rows_)};
}

}  // namespace plait
