// The devices that compute one context together. The last one is the host, the CPU.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/integrity.h"

namespace plait {

// Which device computes each layer of a model. Devices are indexes into a DeviceSet.
struct LayerDevices {
    std::vector<uint8_t> layers;
    std::vector<uint8_t>
        caches;          // the device that holds the layer's cache; usually the layer's own
    uint8_t output = 0;  // for nodes after the last layer
};

// One buffer per device. The host writes its own copy of an input; flush() copies it to the others.
class DeviceBuffers {
public:
    DeviceBuffers() = default;
    explicit DeviceBuffers(std::vector<std::unique_ptr<Buffer>> buffers)
        : buffers_(std::move(buffers)) {}

    Buffer& on(size_t device) const { return *buffers_[device]; }
    std::byte* host() { return buffers_.back()->host(); }
    uint64_t bytes() const;  // all devices together
    void flush(uint64_t offset, uint64_t bytes);

private:
    friend class DeviceSet;
    std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Host memory for the values that a device sends and receives.
struct Exchange {
    std::shared_ptr<Buffer> sent, received;
};

class DeviceSet {
public:
    static constexpr size_t kMaxDevices = 16;

    // Everything is computed on one device.
    template <std::derived_from<Backend> T>
    DeviceSet(std::unique_ptr<T> backend) {
        add(std::move(backend));
    }
    DeviceSet(std::vector<std::unique_ptr<Backend>> backends, LayerDevices layers);

    size_t size() const { return backends_.size(); }
    size_t host() const { return size() - 1; }
    Backend& operator[](size_t device) const { return *backends_[device]; }
    const std::vector<std::string>& names() const { return names_; }
    const LayerDevices& layers() const { return layers_; }

    int n_threads() const;  // the largest of any device
    bool invariant() const;
    CommandCounts commands() const;

    std::unique_ptr<Buffer> allocate_cache(uint64_t bytes, int layer);
    size_t cache_device(int layer) const;
    DeviceBuffers allocate_inputs(uint64_t bytes);
    // Makes the arena of each device at least bytes[device] large.
    void grow(DeviceBuffers& arenas, const std::vector<uint64_t>& bytes);
    // Returns memory for at least `sent` and `received` bytes. Plans share ownership of what they
    // were given, so it stays valid if a later call returns larger memory.
    const Exchange& exchange(size_t device, uint64_t sent, uint64_t received);

    // Runs a change of the caches. With several devices, a failure makes every later run fail.
    template <typename Change>
    void change_caches(Change&& change) {
        integrity_ ? integrity_->change(change) : change();
    }
    void check_caches() const {
        if (integrity_) integrity_->check();
    }

private:
    void add(std::unique_ptr<Backend> backend);

    std::vector<std::unique_ptr<Backend>> backends_;
    std::vector<std::string> names_;
    LayerDevices layers_;
    std::vector<Exchange> exchanges_;       // by device
    std::shared_ptr<Integrity> integrity_;  // null if there is only one device, which has its own
};

}  // namespace plait
