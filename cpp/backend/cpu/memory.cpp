#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace plait::cpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kSlab = 32 * kHugePage;

std::byte* map(uint64_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// Maps memory that is aligned to huge pages, by mapping more and unmapping the excess on both
// sides.
std::byte* map_huge(uint64_t bytes) {
    std::byte* p = map(bytes + kHugePage);
    if (!p) return nullptr;
    const uint64_t before =
        align_up(reinterpret_cast<uint64_t>(p), kHugePage) - reinterpret_cast<uint64_t>(p);
    if (before > 0) munmap(p, before);
    munmap(p + before + bytes, kHugePage - before);
    madvise(p + before, bytes, MADV_HUGEPAGE);
    return p + before;
}

class HostBuffer final : public Buffer {
public:
    explicit HostBuffer(uint64_t bytes) : bytes_(bytes) {
        if (bytes > UINT64_MAX / 2) fail();
        mapped_ = align_up(std::max<uint64_t>(bytes, 1), kPage);
        data_ = mapped_ < kHugePage ? map(mapped_) : map_huge(mapped_);
        if (!data_) fail();
    }
    ~HostBuffer() override { munmap(data_, mapped_); }

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
