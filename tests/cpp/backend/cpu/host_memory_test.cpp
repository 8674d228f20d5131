#include "backend/cpu/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"

namespace plait::cpu {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t address(const std::byte* p) { return reinterpret_cast<uintptr_t>(p); }

bool is_zero(const std::byte* p, uint64_t bytes) {
    return p[0] == std::byte{0} && std::memcmp(p, p + 1, bytes - 1) == 0;
}

TEST(HostMemory, StartsWhereAHugePageMayIfItFillsOne) {
    for (const uint64_t bytes : {kHugePage, kHugePage + 1, 5 * kHugePage - 7}) {
        const auto memory = allocate_host(bytes);
        EXPECT_EQ(memory->bytes(), bytes);
        EXPECT_EQ(address(memory->host()) % kHugePage, 0u);
        EXPECT_TRUE(is_zero(memory->host(), bytes));
    }
    EXPECT_EQ(address(allocate_host(100)->host()) % 4096, 0u);
}

TEST(HostMemory, APoolGivesSmallThingsPlacesBesideEachOther) {
    HostPool pool;
    std::byte* const first = pool.allocate(100);
    EXPECT_EQ(address(first) % kHugePage, 0u);
    std::memset(first, 1, 100);
    std::byte* const second = pool.allocate(3 * kHugePage);
    EXPECT_EQ(second, first + 4096);
    EXPECT_TRUE(is_zero(second, 3 * kHugePage));
    std::memset(second, 2, 3 * kHugePage);
    std::byte* const large = pool.allocate(100 * kHugePage);  // more than a slab holds
    EXPECT_EQ(address(large) % kHugePage, 0u);
    EXPECT_TRUE(is_zero(large, 100 * kHugePage));
    std::byte* const next = pool.allocate(1);
    EXPECT_EQ(address(next) % 4096, 0u);
    *next = std::byte{3};
    EXPECT_EQ(first[99], std::byte{1});
    EXPECT_EQ(second[3 * kHugePage - 1], std::byte{2});
}

TEST(HostMemory, MoreThanThereIsIsAnError) {
    HostPool pool;
    for (const uint64_t bytes : {uint64_t{1} << 60, UINT64_MAX, UINT64_MAX / 2}) {
        EXPECT_THAT([&] { pool.allocate(bytes); },
                    testing::ThrowsMessage<BackendError>(
                        testing::HasSubstr(std::to_string(bytes) + " bytes")));
    }
    *pool.allocate(1) = std::byte{1};
}

}  // namespace
}  // namespace plait::cpu
