// Pipelines on disk: what is not exactly what was written counts as nothing.
#ifdef PLAIT_HAS_VULKAN

#include "backend/vulkan/pipeline_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gguf/writer.h"

namespace plait::vulkan {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

Bytes some_bytes(size_t n) {
    Bytes bytes(n);
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 37);
    return bytes;
}
Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

const Driver kDriver{.vendor = 1, .device = 2, .version = 3};

TEST(PipelineFile, IsReadByTheDriverThatItNamesAlone) {
    const Bytes data = some_bytes(100);
    const Bytes file = encode_pipeline_file(kDriver, data);
    EXPECT_EQ(copy(decode_pipeline_file(kDriver, file)), data);
    for (const auto change :
         {+[](Driver& d) { ++d.vendor; }, +[](Driver& d) { ++d.device; },
          +[](Driver& d) { ++d.version; }, +[](Driver& d) { ++d.cache_uuid[7]; },
          +[](Driver& d) { ++d.driver_uuid[15]; }}) {
        Driver other = kDriver;
        change(other);
        EXPECT_TRUE(decode_pipeline_file(other, file).empty());
    }
}

TEST(PipelineFile, AnyDamageMakesItNothing) {
    const Bytes file = encode_pipeline_file(kDriver, some_bytes(100));
    for (size_t i = 0; i < file.size(); ++i) {
        Bytes damaged = file;
        damaged[i] ^= std::byte{4};
        EXPECT_TRUE(decode_pipeline_file(kDriver, damaged).empty()) << i;
        EXPECT_TRUE(decode_pipeline_file(kDriver, std::span(file).first(i)).empty()) << i;
    }
    Bytes longer = file;
    longer.push_back({});
    EXPECT_TRUE(decode_pipeline_file(kDriver, longer).empty());
}

// The environment as it was.
struct PipelineFileIn : testing::Test {
    void SetUp() override {
        for (size_t i = 0; i < kNames.size(); ++i)
            if (const char* value = std::getenv(kNames[i])) before_[i] = value;
    }
    void TearDown() override {
        for (size_t i = 0; i < kNames.size(); ++i)
            before_[i] ? setenv(kNames[i], before_[i]->c_str(), 1) : unsetenv(kNames[i]);
    }
    static void set(const fs::path& own, const fs::path& cache, const fs::path& home) {
        setenv("PLAIT_VULKAN_CACHE", own.c_str(), 1);
        setenv("XDG_CACHE_HOME", cache.c_str(), 1);
        setenv("HOME", home.c_str(), 1);
    }
    static std::vector<fs::path> files_in(const fs::path& folder) {
        std::vector<fs::path> files;
        for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
        return files;
    }

    static constexpr std::array kNames{"PLAIT_VULKAN_CACHE", "XDG_CACHE_HOME", "HOME"};
    std::array<std::optional<std::string>, 3> before_;
    test::TempFolder folder_;
    const fs::path root_ = fs::path(folder_.write("a", "")).parent_path();
};

TEST_F(PipelineFileIn, TheFolderThatTheEnvironmentNames) {
    struct Case {
        fs::path own, cache, home, expected;
    };
    for (const auto& [own, cache, home, expected] :
         {Case{root_ / "own", root_ / "xdg", root_ / "home", root_ / "own"},
          Case{"", root_ / "xdg", root_ / "home", root_ / "xdg/plait"},
          Case{"", "no/absolute/path", root_ / "home", root_ / "home/.cache/plait"}}) {
        set(own, cache, home);
        const PipelineFile file(kDriver);
        EXPECT_TRUE(file.enabled());
        EXPECT_TRUE(file.read().empty());
        file.write(some_bytes(50));
        EXPECT_EQ(file.read(), some_bytes(50));
        EXPECT_EQ(files_in(expected).size(), 1u) << expected;
    }
    set("off", root_ / "xdg2", root_ / "home");
    EXPECT_FALSE(PipelineFile(kDriver).enabled());
    EXPECT_TRUE(PipelineFile(kDriver).read().empty());
    set("", "", "");
    EXPECT_FALSE(PipelineFile(kDriver).enabled());
}

TEST_F(PipelineFileIn, WhatIsNoneIsIgnoredAndReplaced) {
    set(root_ / "own", "", "");
    const PipelineFile file(kDriver);
    file.write(some_bytes(50));
    const fs::path path = files_in(root_ / "own").at(0);
    for (const std::string& content :
         {std::string(), std::string("other"), std::string(200, 'x')}) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
        EXPECT_TRUE(file.read().empty());
        file.write(some_bytes(60));
        EXPECT_EQ(file.read(), some_bytes(60));
    }
    EXPECT_EQ(files_in(root_ / "own").size(), 1u);  // no drafts
}

// A file in the place of the folder: not even the superuser can write there.
TEST_F(PipelineFileIn, AFolderThatCannotBeWrittenIsGoneWithout) {
    set(fs::path(folder_.write("file", "x")) / "below", "", "");
    const PipelineFile file(kDriver);
    EXPECT_NO_THROW(file.write(some_bytes(50)));
    EXPECT_TRUE(file.read().empty());
}

}  // namespace
}  // namespace plait::vulkan

#endif  // PLAIT_HAS_VULKAN
