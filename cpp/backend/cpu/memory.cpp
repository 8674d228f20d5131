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

class HostBuffer final : public Buffer {
public:
    explicit HostBuffer(uint64_t bytes) : bytes_(bytes) {
        if (bytes > UINT64_MAX / 2) fail();
        mapped_ = align_up(std::max<uint64_t>(bytes, 1), kPage);
        void* p =
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) fail();
        if (mapped_ >= 2 * kHugePage) madvise(p, mapped_, MADV_HUGEPAGE);
        data_ = static_cast<std::byte*>(p);
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
    std::byte* host() override { return data_; }

private:
    [[noreturn]] void fail() const {
        throw BackendError(text("cpu: cannot allocate ", bytes_, " bytes"));
    }

    uint64_t bytes_;
    uint64_t mapped_ = 0;
    std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Buffer> allocate_host(uint64_t bytes) {
    return std::make_unique<HostBuffer>(bytes);
}

}  // namespace plait::cpu
