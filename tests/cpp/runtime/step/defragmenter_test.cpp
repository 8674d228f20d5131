#include "runtime/step/defragmenter.h"

#include <gtest/gtest.h>

namespace plait {
namespace {

TEST(Fragmentation, IsTheShareOfStepsCausedByShortRuns) {  // S3-31
    const auto of = [](int64_t keys, int64_t runs, int64_t fewest) {
        return fragmentation({.n_keys = keys, .n_runs = runs, .min_runs = fewest});
    };
    EXPECT_EQ(of(0, 0, 0), 0);
    EXPECT_EQ(of(255, 255, 1), 0) << "small contexts never count";
    EXPECT_EQ(of(4096, 1, 1), 0);
    EXPECT_EQ(of(4096, 128, 1), 0) << "runs as long as a step cost no extra steps";
    EXPECT_EQ(of(4096, 256, 1), 0.5);
    EXPECT_EQ(of(4096, 4096, 1), 1 - 1 / 32.0);
    EXPECT_EQ(of(4096, 4096, 4096), 0) << "runs that cannot be merged do not count";
    EXPECT_EQ(of(4096, 1024, 512), 0.5);
}

}  // namespace
}  // namespace plait
