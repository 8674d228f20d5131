// The memory of the host, read from copies of the files of the operating system.
#include "runtime/devices/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace plait {
namespace {

constexpr const char* kMemory =
    "MemTotal:       24105000 kB\nMemFree:        19913000 kB\n"
    "MemAvailable:   20000000 kB\nHugePages_Total:       0\nSwapFree:        1000000 kB\n";
constexpr uint64_t kKib = 1024;

class HostMemoryTest : public testing::Test {
protected:
    void SetUp() override {
        root_ = std::filesystem::path(testing::TempDir()) / "host_memory";
        std::filesystem::remove_all(root_);
    }
    void write(const std::string& path, const std::string& text) {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
    }
    void expect(uint64_t free, uint64_t free_with_swap) {
        const HostMemory memory = host_memory(root_.string());
        EXPECT_EQ(memory.free, free);
        EXPECT_EQ(memory.free_with_swap, free_with_swap);
    }

    std::filesystem::path root_;
};

TEST_F(HostMemoryTest, IsUnknownWithoutTheFiles) { expect(0, 0); }

TEST_F(HostMemoryTest, IsWhatTheSystemReports) {
    write("proc/meminfo", kMemory);
    expect(20'000'000 * kKib, 21'000'000 * kKib);
    write("proc/self/cgroup", "0::/user\n");
    write("sys/fs/cgroup/user/memory.max", "max\n");
    expect(20'000'000 * kKib, 21'000'000 * kKib);
}

TEST_F(HostMemoryTest, IsLimitedByTheControlGroup) {
    write("proc/meminfo", kMemory);
    write("proc/self/cgroup", "0::/user\n");
    write("sys/fs/cgroup/user/memory.max", "4000000000\n");
    expect(4'000'000'000, 4'000'000'000);
    write("sys/fs/cgroup/memory.max", "3000000000\n");  // of the container
    expect(3'000'000'000, 3'000'000'000);
    write("proc/self/cgroup", "5:cpu:/a\n4:memory:/a/b\n0::/\n");
    write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2000000000\n");
    expect(2'000'000'000, 2'000'000'000);
}

}  // namespace
}  // namespace plait
