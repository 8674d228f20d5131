#include "runtime/step/outputs.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/checked.h"

namespace plait {

struct OutputHandle::Buffer {
    std::shared_ptr<OutputPool::State> pool;  // set while a handle exists
    std::atomic<int> handles{0};
    uint64_t bytes = 0;
    std::byte* data = nullptr;

    explicit Buffer(uint64_t n)
        : bytes(n), data(static_cast<std::byte*>(::operator new (n, std::align_val_t{64}))) {}
    ~Buffer() { ::operator delete (data, std::align_val_t{64}); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
};

struct OutputPool::State {
    // Max idle buffers; beyond it the largest is freed.
    static constexpr size_t kMaxIdle = 8;

    std::mutex mutex;
    std::vector<std::unique_ptr<OutputHandle::Buffer>> idle;
    uint64_t n_allocated = 0;
};

OutputHandle::OutputHandle(const OutputHandle& other) noexcept : buffer_(other.buffer_) {
    if (buffer_ != nullptr) buffer_->handles.fetch_add(1, std::memory_order_relaxed);
}

OutputHandle::~OutputHandle() {
    if (buffer_ == nullptr || buffer_->handles.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    std::unique_ptr<Buffer> buffer(buffer_);
    const std::shared_ptr<OutputPool::State> pool = std::move(buffer->pool);
    const std::lock_guard lock(pool->mutex);
    std::vector<std::unique_ptr<Buffer>>& idle =
        pool->idle;  // its capacity is reserved, so push_back cannot throw
    if (idle.size() == OutputPool::State::kMaxIdle) {
        const auto largest = std::ranges::max_element(idle, {}, &Buffer::bytes);
        if ((*largest)->bytes > buffer->bytes) std::swap(*largest, buffer);
    } else {
        idle.push_back(std::move(buffer));
    }
}

std::byte* OutputHandle::data() const { return buffer_->data; }

OutputPool::OutputPool() : state_(std::make_shared<State>()) {
    state_->idle.reserve(State::kMaxIdle);
}

OutputHandle OutputPool::take(uint64_t bytes) {
    std::unique_ptr<OutputHandle::Buffer> buffer;
    {
        const std::lock_guard lock(state_->mutex);
        auto& idle = state_->idle;
        auto best = idle.end();
        for (auto it = idle.begin(); it != idle.end(); ++it)
            if ((*it)->bytes >= bytes && (best == idle.end() || (*it)->bytes < (*best)->bytes))
                best = it;
        if (best != idle.end()) {
            buffer = std::move(*best);
            idle.erase(best);
        } else {
            ++state_->n_allocated;
        }
    }
    // Sizes are rounded up so that outputs of nearly the same size share buffers.
    if (!buffer)
        buffer = std::make_unique<OutputHandle::Buffer>(
            bytes <= (uint64_t{1} << 20) ? std::bit_ceil(std::max<uint64_t>(bytes, 4096))
                                         : (bytes + 0xFFFFF) & ~uint64_t{0xFFFFF});
    buffer->pool = state_;
    buffer->handles.store(1, std::memory_order_relaxed);
    return OutputHandle(buffer.release());
}

uint64_t OutputPool::n_allocated() const {
    const std::lock_guard lock(state_->mutex);
    return state_->n_allocated;
}

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
