// The operating system: files, memory and the process.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "platform/file.h"
#include "platform/memory.h"
#include "platform/process.h"

namespace plait::platform {
namespace {

namespace fs = std::filesystem;
using Access = File::Access;

class PlatformFile : public testing::Test {
protected:
    void SetUp() override {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    const fs::path folder_ = fs::path(testing::TempDir()) / "platform_file";
};

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
}

TEST_F(PlatformFile, ReadsWhatItWrote) {
    File file;
    ASSERT_EQ(file.open(path("a"), Access::write), 0);
    ASSERT_EQ(file.write(bytes_of("hello world")), 0);
    std::vector<std::byte> read(32);
    size_t got = 0;
    ASSERT_EQ(file.read(6, read, &got), 0);
    read.resize(got);
    EXPECT_EQ(read, bytes_of("world"));
    ASSERT_EQ(file.read(11, read, &got), 0);
    EXPECT_EQ(got, 0u);
    ASSERT_EQ(file.resize(5), 0);
    FileStatus status;
    ASSERT_EQ(file.status(&status), 0);
    EXPECT_EQ(status.bytes, 5u);
    EXPECT_EQ(status.kind, FileKind::regular);
    EXPECT_TRUE(status.belongs_to_user);
}

TEST_F(PlatformFile, ReportsErrorsAsNumbers) {
    File file;
    EXPECT_EQ(file.open(path("missing"), Access::read), ENOENT);
    FileStatus status;
    EXPECT_EQ(status_of(path("missing"), &status), ENOENT);
    EXPECT_EQ(remove_file(path("missing")), ENOENT);
    fs::create_symlink(path("target"), path("link"));
    EXPECT_EQ(file.open(path("link"), Access::write), ELOOP);
}

TEST_F(PlatformFile, OpensAPipeWithoutAWriter) {
    ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    File file;
    ASSERT_EQ(file.open(path("pipe"), Access::read), 0);
    FileStatus status;
    ASSERT_EQ(file.status(&status), 0);
    EXPECT_EQ(status.kind, FileKind::pipe);
    ASSERT_EQ(status_of(folder_.string(), &status), 0);
    EXPECT_EQ(status.kind, FileKind::folder);
}

TEST_F(PlatformFile, MapsWhatOthersWrite) {
    constexpr uint64_t kOffset = 65536, kBytes = 100;
    File file;
    ASSERT_EQ(file.open(path("map"), Access::write_private), 0);
    ASSERT_EQ(file.resize(kOffset + kBytes), 0);
    ASSERT_EQ(file.reserve(kOffset, kBytes), 0);
    std::byte* writable = file.map_shared(kOffset, kBytes, true);
    std::byte* readable = file.map_shared(0, kOffset + kBytes, false);
    ASSERT_TRUE(writable && readable);
    writable[99] = std::byte{7};
    EXPECT_EQ(readable[kOffset + 99], std::byte{7});
    unmap(writable, kBytes);
    unmap(readable, kOffset + kBytes);
    FileStatus status;
    ASSERT_EQ(file.status(&status), 0);
    EXPECT_EQ(status.permissions, 0600u);
}

TEST_F(PlatformFile, UnknownFileSystemsAreNotLocal) {
    EXPECT_FALSE(is_local("/proc"));
    EXPECT_FALSE(is_local(path("missing")));
    EXPECT_TRUE(is_local("/dev/shm"));
}

TEST_F(PlatformFile, ReplacesAFile) {
    std::ofstream(path("old")) << "old";
    std::ofstream(path("new")) << "new file";
    ASSERT_EQ(rename_file(path("new"), path("old")), 0);
    FileStatus status;
    ASSERT_EQ(status_of(path("old"), &status), 0);
    EXPECT_EQ(status.bytes, 8u);
    EXPECT_EQ(status_of(path("new"), &status), ENOENT);
}

TEST(PlatformMemory, IsZeroAndAligned) {
    constexpr uint64_t kHuge = uint64_t{2} << 20;
    const uint64_t page = page_bytes();
    EXPECT_GE(page, 4096u);
    EXPECT_EQ(page & (page - 1), 0u);
    std::byte* small = map_memory(page);
    std::byte* large = map_huge_memory(kHuge + page);
    ASSERT_TRUE(small && large);
    EXPECT_EQ(reinterpret_cast<uint64_t>(large) % kHuge, 0u);
    EXPECT_EQ(large[kHuge + page - 1], std::byte{0});
    std::memset(small, 1, page);
    unmap_memory(small, page);
    unmap_memory(large, kHuge + page);
}

TEST(PlatformProcess, IsIdentified) {
    EXPECT_GT(process_id(), 0);
    EXPECT_GE(usable_cores(), 1);
    EXPECT_EQ(machine_identity(), machine_identity());
    EXPECT_EQ(boot_identity(), boot_identity());
    EXPECT_FALSE(library_identity(reinterpret_cast<const void*>(&bytes_of)).empty());
}

}  // namespace
}  // namespace plait::platform
