// Bytes on a device, and who hands them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace plait {

// A block of device memory, zero at birth. Owned by exactly one of: a weight store, a context's
// storage, arena or output pool.
class Buffer {
public:
    virtual ~Buffer() = default;
    virtual uint64_t bytes() const = 0;
    virtual void write(uint64_t offset, std::span<const std::byte> source) = 0;
    virtual void read(uint64_t offset, std::span<std::byte> target) const = 0;
    // Host address of the first byte, or null where the device has none.
    virtual std::byte* host() = 0;
    // What was written through host() reaches every device that reads it. Nothing to do where they
    // read that very memory.
    virtual void flush(uint64_t offset, uint64_t bytes) {
        static_cast<void>(offset);
        static_cast<void>(bytes);
    }
    // The buffer that kernels use, if this one only checks the accesses of the host.
    virtual Buffer& unguarded() { return *this; }
};

class Allocator {
public:
    virtual ~Allocator() = default;
    // Throws BackendError, naming the bytes, when the device has not enough.
    virtual std::unique_ptr<Buffer> allocate(uint64_t bytes) = 0;
};

}  // namespace plait
