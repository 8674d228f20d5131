#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/text.h"

namespace plait {
namespace {

TEST(Error, ABrokenInvariantNamesItselfAndItsPlace) {
    EXPECT_NO_THROW(PLAIT_CHECK(1 + 1 == 2));
    try {
        PLAIT_CHECK(1 + 1 == 3);
        FAIL() << "a false condition passed";
    } catch (const InternalError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("1 + 1 == 3"));
        EXPECT_THAT(error.what(), testing::HasSubstr("error_test.cpp"));
    }
}

TEST(Error, AFullCacheSaysHowManyRowsAreMissing) {
    try {
        throw CacheFull("decode: the cache is full", 7, 3);
    } catch (const std::runtime_error& error) {
        const auto& full = dynamic_cast<const CacheFull&>(error);
        EXPECT_EQ(full.needed, 7);
        EXPECT_EQ(full.free, 3);
        EXPECT_STREQ(full.what(), "decode: the cache is full");
    }
}

TEST(Text, JoinsItsParts) {
    EXPECT_EQ(text("sequence ", 3, " expects ", 1.5), "sequence 3 expects 1.5");
    EXPECT_EQ(text(std::string("alone")), "alone");
}

TEST(Hash, DependsOnOrderAndOnWhereOneStringEnds) {
    EXPECT_EQ(Hash().add(1).add(2).value(), Hash().add(1).add(2).value());
    EXPECT_NE(Hash().add(1).add(2).value(), Hash().add(2).add(1).value());
    EXPECT_NE(Hash().add("ab").add("c").value(), Hash().add("a").add("bc").value());
    EXPECT_NE(Hash().add("").value(), Hash().value());
}

}  // namespace
}  // namespace plait
