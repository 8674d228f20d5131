// The open Sequence handles of a context, and references to sequences in arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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

struct Handle {
    uint64_t number = 0;  // unique in the process
    std::atomic<bool> open{true};
};

// Which handle owns which id. While a handle is open, only the handle names its sequence in calls
// that change the sequence; calls that read it also accept the id. A mutex guards the table: calls
// that name sequences hold it shared, so that no handle is opened or closed before they end.
class Handles {
public:
    explicit Handles(const void* context) : context_(context) {}

    // Lock the mutex. Both wait for their turn first: while lock() waits for calls that hold the
    // mutex, no further call can get it, which might otherwise go on for ever.
    std::shared_lock<std::shared_mutex> lock_shared() {
        const std::lock_guard turn(turn_);
        return std::shared_lock(mutex_);
    }
    std::unique_lock<std::shared_mutex> lock() {
        const std::lock_guard turn(turn_);
        return std::unique_lock(mutex_);
    }
    void open(SequenceId id, const std::shared_ptr<Handle>& handle) noexcept;
    void close(SequenceId id) noexcept;
    void reserve(size_t n_ids);  // call before open() of smaller ids
    bool is_owned(SequenceId id) const { return owner(id) != nullptr; }
    bool owns(const Handle& handle, SequenceId id) const { return owner(id) == &handle; }
    // Returns what is wrong with the reference; nullopt if the call may use it.
    std::optional<std::string> problem(const SequenceRef& ref) const;
    void check(const SequenceRef& ref) const;  // throws InvalidArgument

    // Transactions, each with a number that is unique in the process. A rollback closes the handles
    // that were opened since, and opens those that were closed, unless their object is destroyed.
    void begin_transaction(uint64_t number);
    void commit_transaction() noexcept { transactions_.pop_back(); }
    void roll_back_transaction() noexcept;
    bool in_transaction(uint64_t number) const;
    // Number of the innermost open transaction; 0 if there is none.
    uint64_t innermost() const { return transactions_.empty() ? 0 : transactions_.back().number; }

private:
    struct Transaction {
        uint64_t number = 0;
        std::vector<std::weak_ptr<Handle>> by_id;
    };
    const Handle* owner(SequenceId id) const {
        const auto index = static_cast<size_t>(id);
        return id >= 0 && index < by_id_.size() ? by_id_[index].get() : nullptr;
    }

    const void* context_;
    std::mutex turn_;
    std::shared_mutex mutex_;
    std::vector<std::shared_ptr<Handle>> by_id_;  // the open handle; null: none
    std::vector<Transaction> transactions_;
};

}  // namespace plait::python
