// Log records. They are dropped until a sink is installed; the library itself never prints.
#pragma once

#include <functional>
#include <string>

namespace plait {

// The values of Python's logging module.
enum class LogLevel : int { trace = 5, debug = 10, info = 20, warning = 30, error = 40 };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink; records below `threshold` are dropped before they are formatted.
void set_log_sink(LogSink sink, LogLevel threshold);

bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, const std::string& message);

}  // namespace plait
