#include "base/stop.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"

namespace plait {
namespace {

TEST(Stop, OnlyTheThreadOfASetScopeStops) {
    std::atomic<bool> stop = false;
    EXPECT_NO_THROW(check_stop());
    const StopScope scope(stop);
    EXPECT_NO_THROW(check_stop());
    stop = true;
    EXPECT_THROW(check_stop(), Interrupted);
    std::thread([] { EXPECT_NO_THROW(check_stop()); }).join();
}

TEST(Stop, TheInnerScopeCounts) {
    std::atomic<bool> outer_stop = true, inner_stop = false;
    const StopScope outer(outer_stop);
    {
        const StopScope inner(inner_stop);
        EXPECT_NO_THROW(check_stop());
    }
    EXPECT_THROW(check_stop(), Interrupted);
}

}  // namespace
}  // namespace plait
