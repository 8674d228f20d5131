// Device memory and its allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace plait {

// A block of device memory, initially zero. Its only owner is a weight store or a context's
// storage, arena or output pool.
class Buffer {
public:
    virtual ~Buffer() = default;
    virtual uint64_t bytes() const = 0;
    virtual void write(uint64_t offset, std::span<const std::byte> source) = 0;
    virtual void read(uint64_t offset, std::span<std::byte> target) const = 0;
    // The host address of the first byte; null if the memory is not mapped.
    virtual std::byte* host() = 0;
    // Makes writes through host() visible to every device. The default is for memory that devices
    // read directly.
    virtual void flush(uint64_t offset, uint64_t bytes) {
        static_cast<void>(offset);
        static_cast<void>(bytes);
    }
    // The address of the first byte, as kernels of the device use it.
    virtual uint64_t address() const = 0;
};

class Allocator {
public:
    virtual ~Allocator() = default;
    // If the device has too little memory, throws BackendError with the size.
    virtual std::unique_ptr<Buffer> allocate(uint64_t bytes) = 0;
};

}  // namespace plait
