#include "base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plait {
namespace {

// Leaves no sink behind.
class Log : public testing::Test {
protected:
    ~Log() override { set_log_sink(nullptr, LogLevel::error); }
};

TEST_F(Log, IsSilentWithoutASink) {
    set_log_sink(nullptr, LogLevel::trace);
    EXPECT_FALSE(log_enabled(LogLevel::error));
    log(LogLevel::error, "nobody listens");
}

TEST_F(Log, HandsOverWhatReachesTheThreshold) {
    std::vector<std::pair<LogLevel, std::string>> records;
    set_log_sink(
        [&](LogLevel level, const std::string& text) { records.emplace_back(level, text); },
        LogLevel::info);
    EXPECT_FALSE(log_enabled(LogLevel::debug));
    EXPECT_TRUE(log_enabled(LogLevel::info));
    log(LogLevel::debug, "too quiet");
    log(LogLevel::info, "just right");
    log(LogLevel::error, "loud");
    const std::vector<std::pair<LogLevel, std::string>> expected = {{LogLevel::info, "just right"},
                                                                    {LogLevel::error, "loud"}};
    EXPECT_EQ(records, expected);
}

TEST_F(Log, ASinkMayReplaceItself) {
    int calls = 0;
    set_log_sink(
        [&](LogLevel, const std::string&) {
            ++calls;
            set_log_sink(nullptr, LogLevel::error);
        },
        LogLevel::info);
    log(LogLevel::info, "first");
    log(LogLevel::info, "second");
    EXPECT_EQ(calls, 1);
}

TEST_F(Log, SinksAreReplacedWhileOthersLog) {
    std::atomic<int> received = 0;
    const auto sink = [&](LogLevel, const std::string&) { ++received; };
    set_log_sink(sink, LogLevel::info);
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i) {
        writers.emplace_back([] {
            for (int n = 0; n < 1000; ++n) log(LogLevel::info, "record");
        });
    }
    for (int n = 0; n < 100; ++n) set_log_sink(sink, LogLevel::info);
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(received, 4000);
}

}  // namespace
}  // namespace plait
