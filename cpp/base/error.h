// Errors that cross the library boundary. One class per thing a caller can do about it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace plait {

// The caller broke a documented precondition. Python: ValueError.
struct InvalidArgument : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// An index outside what exists. Python: IndexError.
struct OutOfRange : std::out_of_range {
    using std::out_of_range::out_of_range;
};

// A batch that cannot be decoded as it is. Python: BatchError(ValueError).
struct BatchError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// A file is not what it claims to be. Python: ModelError(ValueError).
struct ModelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Every row of a KV cache is taken; free a sequence and retry. Python: CacheFull(RuntimeError).
struct CacheFull : std::runtime_error {
    CacheFull(const std::string& what, int64_t needed_rows, int64_t free_rows)
        : std::runtime_error(what), needed(needed_rows), free(free_rows) {}
    int64_t needed;
    int64_t free;
};

// A saved state that does not fit this context, or is damaged. Python: StateError(ValueError).
struct StateError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A device refused work or memory. Python: BackendError(RuntimeError).
struct BackendError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Asked for something this model, memory or build cannot do. Python: UnsupportedError.
struct UnsupportedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The caller asked a running call to stop. Python: whatever the signal handler raised.
struct Interrupted : std::exception {
    const char* what() const noexcept override { return "interrupted"; }
};

// We broke our own invariant: always a bug here, never the caller's. Python: SystemError.
struct InternalError : std::logic_error {
    using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal(const char* condition, const char* file, int line);

}  // namespace plait

// Checks an invariant of ours in every build. Never use it on user input.
#define PLAIT_CHECK(condition) \
    ((condition) ? void(0) : ::plait::throw_internal(#condition, __FILE__, __LINE__))
