// Exceptions that cross the library boundary. Each class stands for an error that callers may want
// to handle differently.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace plait {

// The caller broke a documented precondition. Python: ValueError.
struct InvalidArgument : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// An index is out of range. Python: IndexError.
struct OutOfRange : std::out_of_range {
    using std::out_of_range::out_of_range;
};

// A batch is invalid. Python: BatchError(ValueError).
struct BatchError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// A model file is malformed or inconsistent. Python: ModelError(ValueError).
struct ModelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A model file does not exist. Python: ModelError that is also a FileNotFoundError.
struct ModelNotFound : ModelError {
    using ModelError::ModelError;
};

// The KV cache has too few free rows; free a sequence and retry. Python: CacheFull(RuntimeError).
struct CacheFull : std::runtime_error {
    CacheFull(const std::string& what, int64_t needed_rows, int64_t free_rows)
        : std::runtime_error(what), needed(needed_rows), free(free_rows) {}
    int64_t needed;
    int64_t free;
};

// A saved state is damaged or does not fit this context. Python: StateError(ValueError).
struct StateError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The file of a saved state does not exist. Python: StateError that is also a FileNotFoundError.
struct StateNotFound : StateError {
    using StateError::StateError;
};

// A device failed or ran out of memory. Python: BackendError(RuntimeError).
struct BackendError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// There is too little memory. Python: BackendError that is also a MemoryError.
struct OutOfMemory : BackendError {
    using BackendError::BackendError;
};

// The model, memory or build does not support the request. Python: UnsupportedError.
struct UnsupportedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The caller interrupted a running call. Python: the exception raised by the signal handler.
struct Interrupted : std::exception {
    const char* what() const noexcept override { return "interrupted"; }
};

// An internal invariant is violated: a bug in this library. Python: SystemError.
struct InternalError : std::logic_error {
    using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal(const char* condition, const char* file, int line);

}  // namespace plait

// Checks an internal invariant, in every build type. Not for user input.
#define PLAIT_CHECK(condition) \
    ((condition) ? void(0) : ::plait::throw_internal(#condition, __FILE__, __LINE__))
