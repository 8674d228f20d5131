// A pool of output buffers. A buffer returns to its pool when its last handle is destroyed, so a caller
// that keeps k outputs causes k allocations in all. Handles keep the state of the pool alive.
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

class OutputPool {
public:
    OutputPool();
    // Returns a buffer of at least `bytes` bytes, 64-byte aligned, with unspecified contents. Throws
    // std::bad_alloc.
    OutputHandle take(uint64_t bytes);
    uint64_t n_allocated() const;  // buffers allocated since construction

private:
    friend class OutputHandle;
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace plait
