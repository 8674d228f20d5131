// The result of decode() or encode(), and the pool of its buffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace plait {

class OutputPool;

// Shared, reference-counted ownership of one buffer. Copying allocates nothing.
class OutputHandle {
public:
    OutputHandle() = default;
    OutputHandle(const OutputHandle& other) noexcept;
    OutputHandle(OutputHandle&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
    OutputHandle& operator=(OutputHandle other) noexcept {
        std::swap(buffer_, other.buffer_);
        return *this;
    }
    ~OutputHandle();

    std::byte* data() const;
    explicit operator bool() const { return buffer_ != nullptr; }

private:
    friend class OutputPool;
    struct Buffer;
    explicit OutputHandle(Buffer* buffer) : buffer_(buffer) {}
    Buffer* buffer_ = nullptr;
};

// A buffer returns to its pool when its last handle is destroyed, so a caller that keeps k outputs
// causes k allocations in all. Handles keep the state of the pool alive.
class OutputPool {
public:
    OutputPool();
    // Returns a buffer of at least `bytes` bytes, 64-byte aligned, with unspecified contents.
    // Throws std::bad_alloc.
    OutputHandle take(uint64_t bytes);
    uint64_t n_allocated() const;  // buffers allocated since construction

private:
    friend class OutputHandle;
    struct State;
    std::shared_ptr<State> state_;
};

// The result of decode() or encode(). Cheap to copy; the arrays live as long as any copy.
class Outputs {
public:
    Outputs() = default;
    // Allocates `rows` rows of logits and of embeddings; a width of 0 omits either.
    Outputs(OutputPool& pool, int64_t rows, int64_t n_vocab, int64_t width);

    int64_t rows() const { return rows_; }
    bool has_logits() const { return n_vocab_ > 0; }
    bool has_embeddings() const { return width_ > 0; }
    std::span<float> logits() const;      // [rows, n_vocab]
    std::span<float> embeddings() const;  // [rows, width]
    std::span<int32_t> indices() const;   // [rows] batch entry of each row
    int64_t n_vocab() const { return n_vocab_; }
    int64_t width() const { return width_; }

private:
    OutputHandle handle_;
    int64_t rows_ = 0;
    int64_t n_vocab_ = 0;
    int64_t width_ = 0;
    uint64_t embeddings_offset_ = 0;
    uint64_t logits_offset_ = 0;
};

}  // namespace plait
