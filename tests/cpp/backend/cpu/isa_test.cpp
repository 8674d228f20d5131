#include "backend/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace plait::cpu {
namespace {

// Sets PLAIT_ISA, and restores its value in the destructor.
class Environment {
public:
    explicit Environment(const char* value) {
        if (const char* old = std::getenv("PLAIT_ISA")) old_ = old;
        value ? setenv("PLAIT_ISA", value, 1) : unsetenv("PLAIT_ISA");
    }
    ~Environment() { old_ ? setenv("PLAIT_ISA", old_->c_str(), 1) : unsetenv("PLAIT_ISA"); }

private:
    std::optional<std::string> old_;
};

TEST(Isa, ThePreferredOneUnlessLimited) {
    const std::vector<Isa> isas = available_isas();
    ASSERT_FALSE(isas.empty());
    EXPECT_EQ(isas.front(), isa_from_name("scalar"));
    const Environment none(nullptr);
    EXPECT_EQ(choose_isa(std::nullopt), default_isa());
    // Only processors without kernels of their own use OpenBLAS without a request.
#if defined(__x86_64__) || defined(__aarch64__)
    EXPECT_TRUE(default_isa()->is_invariant());
#else
    EXPECT_EQ(default_isa(), isas.back());
#endif
    for (const Isa isa : isas) {
        EXPECT_EQ(choose_isa(to_string(isa)), isa);
        const Environment limited(std::string(to_string(isa)).c_str());
        EXPECT_EQ(choose_isa(std::nullopt), isa);
        EXPECT_EQ(choose_isa("scalar"), isa_from_name("scalar"));
        EXPECT_EQ(choose_isa(to_string(isas.back())), isa);
    }
}

TEST(Isa, UnknownNamesAreRefused) {
    const Environment none(nullptr);
    EXPECT_THROW(choose_isa("sse9"), BackendError);
    const Environment wrong("altivec");
    EXPECT_THROW(choose_isa(std::nullopt), BackendError);
    EXPECT_EQ(isa_from_name("AVX2"), nullptr);
}

}  // namespace
}  // namespace plait::cpu
