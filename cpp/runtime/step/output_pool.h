// Buffers for results, handed out and taken back. A buffer returns to its pool when the last handle
// dies, so a caller who keeps k outputs costs k buffers, each allocated once. The pool outlives its
// context as long as any handle does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace plait {

class OutputPool;

// Shared ownership of one buffer; copying counts, nothing is allocated.
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

class OutputPool {
public:
    OutputPool();
    // At least `bytes`, 64-byte aligned, contents unspecified. Throws std::bad_alloc.
    OutputHandle take(uint64_t bytes);
    uint64_t n_allocated() const;  // buffers made since birth

private:
    friend class OutputHandle;
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace plait
