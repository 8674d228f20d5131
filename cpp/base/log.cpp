#include "base/log.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace plait {
namespace {

constexpr int kSilent = 1000;  // above every level
std::atomic<int> g_threshold{kSilent};
std::mutex g_mutex;
std::shared_ptr<const LogSink> g_sink;

}  // namespace

void set_log_sink(LogSink sink, LogLevel threshold) {
    const std::lock_guard lock(g_mutex);
    const bool silent = !sink;
    g_sink = silent ? nullptr : std::make_shared<const LogSink>(std::move(sink));
    g_threshold.store(silent ? kSilent : static_cast<int>(threshold), std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) noexcept {
    return static_cast<int>(level) >= g_threshold.load(std::memory_order_relaxed);
}

void log(LogLevel level, const std::string& message) {
    if (!log_enabled(level)) return;
    std::shared_ptr<const LogSink> sink;
    {
        const std::lock_guard lock(g_mutex);
        sink = g_sink;
    }
    if (sink) (*sink)(level, message);
}

}  // namespace plait
