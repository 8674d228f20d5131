// Memory of several devices as one buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/integrity.h"
#include "tensor/buffer.h"

namespace plait::joint {

// Room for the same bytes on each device, so that an offset holds on all of them. What is read and
// written here is the host's own, the last.
class Mirrored final : public Buffer {
public:
    explicit Mirrored(std::vector<std::unique_ptr<Buffer>> parts) : parts_(std::move(parts)) {}

    Buffer& on(size_t device) const { return *parts_[device]; }
    uint64_t bytes() const override { return home().bytes(); }
    void write(uint64_t offset, std::span<const std::byte> source) override {
        home().write(offset, source);
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        home().read(offset, target);
    }
    std::byte* host() override { return home().host(); }
    void flush(uint64_t offset, uint64_t bytes) override {
        for (size_t i = 0; i + 1 < parts_.size(); ++i)
            parts_[i]->write(offset, {host() + offset, bytes});
    }

private:
    Buffer& home() const { return *parts_.back(); }

    std::vector<std::unique_ptr<Buffer>> parts_;  // by device
};

// A cache, on the device of its layer. A change that fails on one device leaves what is on the
// others of no use too.
class Placed final : public Buffer {
public:
    Placed(uint8_t device, std::unique_ptr<Buffer> bytes, std::shared_ptr<Integrity> integrity)
        : device_(device), bytes_(std::move(bytes)), integrity_(std::move(integrity)) {}

    uint8_t device() const { return device_; }
    Buffer& there() { return *bytes_; }
    uint64_t bytes() const override { return bytes_->bytes(); }
    void write(uint64_t offset, std::span<const std::byte> source) override {
        integrity_->change([&] { bytes_->write(offset, source); });
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        integrity_->check();
        bytes_->read(offset, target);
    }
    std::byte* host() override { return bytes_->host(); }

private:
    uint8_t device_;
    std::unique_ptr<Buffer> bytes_;
    std::shared_ptr<Integrity> integrity_;
};

}  // namespace plait::joint
