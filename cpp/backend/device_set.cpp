#include "backend/device_set.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// A cache on one of several devices.
class GuardedBuffer final : public Buffer {
public:
    GuardedBuffer(std::unique_ptr<Buffer> buffer, std::shared_ptr<Integrity> integrity)
        : buffer_(std::move(buffer)), integrity_(std::move(integrity)) {}

    uint64_t bytes() const override { return buffer_->bytes(); }
    void write(uint64_t offset, std::span<const std::byte> source) override {
        integrity_->change([&] { buffer_->write(offset, source); });
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        integrity_->check();
        buffer_->read(offset, target);
    }
    std::byte* host() override { return buffer_->host(); }
    uint64_t address() const override { return buffer_->address(); }

private:
    std::unique_ptr<Buffer> buffer_;
    std::shared_ptr<Integrity> integrity_;
};

}  // namespace

uint64_t DeviceBuffers::bytes() const {
    uint64_t all = 0;
    for (const auto& buffer : buffers_) all += buffer->bytes();
    return all;
}

void DeviceBuffers::flush(uint64_t offset, uint64_t bytes) {
    for (size_t d = 0; d + 1 < buffers_.size(); ++d)
        buffers_[d]->write(offset, {host() + offset, bytes});
    buffers_.back()->flush(offset, bytes);
}

DeviceSet::DeviceSet(std::vector<std::unique_ptr<Backend>> backends, LayerDevices layers)
    : layers_(std::move(layers)) {
    PLAIT_CHECK(!backends.empty() && backends.size() <= kMaxDevices);
    for (auto& backend : backends) add(std::move(backend));
    if (size() == 1) return;
    std::string all;
    for (const std::string& name : names_) all += text(all.empty() ? "" : " + ", name);
    integrity_ = std::make_shared<Integrity>(all);
}

void DeviceSet::add(std::unique_ptr<Backend> backend) {
    const auto same = std::ranges::count_if(
        backends_, [&](const auto& other) { return other->name() == backend->name(); });
    names_.push_back(same == 0 ? std::string(backend->name())
                               : text(backend->name(), "/", same + 1));
    backends_.push_back(std::move(backend));
    exchanges_.emplace_back();
}

int DeviceSet::n_threads() const {
    int n = 1;
    for (const auto& backend : backends_) n = std::max(n, backend->n_threads());
    return n;
}

bool DeviceSet::invariant() const {
    return std::ranges::all_of(backends_, [](const auto& backend) { return backend->invariant(); });
}

CommandCounts DeviceSet::commands() const {
    CommandCounts all;
    for (const auto& backend : backends_) {
        all.recorded += backend->commands().recorded;
        all.submitted += backend->commands().submitted;
    }
    return all;
}

size_t DeviceSet::cache_device(int layer) const {
    return size() == 1 ? 0 : layers_.caches.at(static_cast<size_t>(layer));
}

std::unique_ptr<Buffer> DeviceSet::allocate_cache(uint64_t bytes, int layer) {
    std::unique_ptr<Buffer> buffer = backends_[cache_device(layer)]->allocate(bytes);
    if (!integrity_) return buffer;
    return std::make_unique<GuardedBuffer>(std::move(buffer), integrity_);
}

DeviceBuffers DeviceSet::allocate_inputs(uint64_t bytes) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (const auto& backend : backends_) buffers.push_back(backend->allocate_inputs(bytes));
    return DeviceBuffers(std::move(buffers));
}

void DeviceSet::grow(DeviceBuffers& arenas, const std::vector<uint64_t>& bytes) {
    arenas.buffers_.resize(size());
    for (size_t d = 0; d < size(); ++d) {
        std::unique_ptr<Buffer>& arena = arenas.buffers_[d];
        if (!arena || arena->bytes() < bytes[d]) arena = backends_[d]->allocate(bytes[d]);
    }
}

const Exchange& DeviceSet::exchange(size_t device, uint64_t sent, uint64_t received) {
    Exchange& room = exchanges_[device];
    if (!room.sent || room.sent->bytes() < sent)
        room.sent = backends_[device]->allocate_results(sent);
    if (!room.received || room.received->bytes() < received)
        room.received = backends_[device]->allocate_inputs(received);
    return room;
}

}  // namespace plait
