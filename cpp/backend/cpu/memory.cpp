#include "backend/cpu/memory.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "platform/memory.h"

namespace plait::cpu {
namespace {

// Of a pool's parts. Huge pages are aligned to more.
constexpr uint64_t kPage = 4096;
constexpr uint64_t kSlab = 32 * platform::kHugePageBytes;

class HostBuffer final : public Buffer {
public:
    explicit HostBuffer(uint64_t bytes) : bytes_(bytes) {
        if (bytes > UINT64_MAX / 2) fail();
        mapped_ = align_up(std::max<uint64_t>(bytes, 1), platform::page_bytes());
        data_ = mapped_ < platform::kHugePageBytes ? platform::map_memory(mapped_)
                                                   : platform::map_huge_memory(mapped_);
        if (!data_) fail();
    }
    ~HostBuffer() override { platform::unmap_memory(data_, mapped_); }

    uint64_t bytes() const override { return bytes_; }
    void write(uint64_t offset, std::span<const std::byte> source) override {
        PLAIT_CHECK(offset <= bytes_ && source.size() <= bytes_ - offset);
        std::memcpy(data_ + offset, source.data(), source.size());
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        PLAIT_CHECK(offset <= bytes_ && target.size() <= bytes_ - offset);
        std::memcpy(target.data(), data_ + offset, target.size());
    }
    uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }
    std::byte* host() override { return data_; }

private:
    [[noreturn]] void fail() const {
        throw OutOfMemory(text("cpu: cannot allocate ", bytes_, " bytes"));
    }

    uint64_t bytes_;
    uint64_t mapped_ = 0;
    std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Buffer> allocate_host(uint64_t bytes) {
    return std::make_unique<HostBuffer>(bytes);
}

std::byte* HostPool::allocate(uint64_t bytes) {
    if (slabs_.empty() || bytes > slabs_.back()->bytes() - used_) {
        slabs_.push_back(allocate_host(std::max(bytes, kSlab)));
        used_ = 0;
    }
    std::byte* p = slabs_.back()->host() + used_;
    used_ = std::min(align_up(used_ + bytes, kPage), slabs_.back()->bytes());
    return p;
}

}  // namespace plait::cpu
