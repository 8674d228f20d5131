#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace plait {
namespace {

// Of bytes 3, 10, 17, ... as the reference implementation (xxHash 0.8) gives them.
TEST(Checksum, IsXxh64) {
    const auto sum = [](size_t n) {
        std::string bytes(n, '\0');
        for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>((i * 7 + 3) % 256);
        return checksum(bytes);
    };
    EXPECT_EQ(sum(0), 0xef46db3751d8e999u);
    EXPECT_EQ(sum(1), 0x1f25c8d0bc1f4bb6u);
    EXPECT_EQ(sum(3), 0x31d2363f52e564c9u);
    EXPECT_EQ(sum(4), 0x9bb64b7d66ee9fdau);
    EXPECT_EQ(sum(8), 0xdab99d95c6f90092u);
    EXPECT_EQ(sum(31), 0xa2aa5f33cc4a6119u);
    EXPECT_EQ(sum(32), 0x23c3c17ef790fd97u);
    EXPECT_EQ(sum(33), 0x50a7cfc7ba588784u);
    EXPECT_EQ(sum(100), 0xa61f8d4c170fe531u);
    EXPECT_EQ(sum(1000), 0x5f235fa033f1a3fbu);
    EXPECT_EQ(checksum("abc"), 0x44bc2cf5ad770999u);
}

}  // namespace
}  // namespace plait
