// The open Sequence handles of a context, and references to sequences in arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "batch/batch.h"

namespace plait::python {

enum class Access { read, change };

// A sequence that an argument names, by a handle or by its bare id.
struct SequenceRef {
    SequenceId id = 0;
    uint64_t handle = 0;            // number of the handle, unique in the process; 0: a bare id
    const void* context = nullptr;  // the SharedContext of the handle
    const char* argument = "seq";
    Access access = Access::change;

    bool operator==(const SequenceRef&) const = default;
};

// Which handle owns which id. While a handle is open, only the handle names its sequence in calls
// that change the sequence; calls that read it also accept the id. The mutex guards the table:
// calls that name sequences hold it shared, so that no handle is opened or closed before they end.
class Handles {
public:
    explicit Handles(const void* context) : context_(context) {}

    std::shared_mutex& mutex() { return mutex_; }
    uint64_t open(SequenceId id);  // returns the number of the handle
    void close(SequenceId id);
    void reserve(size_t n_ids);  // open() of smaller ids does not allocate
    // Returns what is wrong with the reference; nullopt if the call may use it.
    std::optional<std::string> problem(const SequenceRef& ref) const;
    void check(const SequenceRef& ref) const;  // throws InvalidArgument

private:
    const void* context_;
    std::shared_mutex mutex_;
    std::vector<uint64_t> by_id_;  // number of the open handle; 0: none
};

}  // namespace plait::python
