// A thread's claim on the tasks that it has taken, which another thread may take over while the
// operating system has suspended the first one.
#pragma once

#include <stdint.h>

#include "base/inline.h"

namespace plait::cpu {

// The owner computes into its own scratch and commits the results in pieces. Once the claim is
// lost, nothing more is committed, so it does no harm if the owner's inputs have changed by then.
// Uses builtins instead of std::atomic for the reason given in frame.h.
class Claim {
public:
    // For the owner.
    PLAIT_INLINE_MEMBER void open() {
        __atomic_store_n(&word_, (__atomic_load_n(&word_, __ATOMIC_RELAXED) | 3) + 1 + kOpen,
                         __ATOMIC_RELEASE);
    }
    // True while no other thread has taken the tasks over. Values that were loaded before this
    // call, with acquire, then belong to the current run.
    PLAIT_INLINE_MEMBER bool holds() const {
        return state(__atomic_load_n(&word_, __ATOMIC_RELAXED)) == kOpen;
    }
    // Returns false if the claim is lost. A thread that takes over later sees what is written
    // between begin_commit() and end_commit().
    PLAIT_INLINE_MEMBER bool begin_commit() { return change(kOpen, kCommitting); }
    PLAIT_INLINE_MEMBER void end_commit() {
        __atomic_store_n(&word_, __atomic_load_n(&word_, __ATOMIC_RELAXED) - kCommitting + kOpen,
                         __ATOMIC_RELEASE);
    }
    // Returns true if the owner did all of the tasks itself.
    PLAIT_INLINE_MEMBER bool close() { return change(kOpen, kNone); }

    // For other threads. Returns true if the claim is open; `seen` then identifies it, and
    // take_over() succeeds only while it is still the same claim.
    PLAIT_INLINE_MEMBER bool is_open(uint64_t* seen) const {
        *seen = __atomic_load_n(&word_, __ATOMIC_ACQUIRE);
        return state(*seen) == kOpen;
    }
    PLAIT_INLINE_MEMBER bool take_over(uint64_t seen) {
        return __atomic_compare_exchange_n(&word_, &seen, seen - kOpen + kLost, false,
                                           __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }

private:
    enum State : uint64_t { kNone, kOpen, kCommitting, kLost };
    PLAIT_INLINE_MEMBER static uint64_t state(uint64_t word) { return word & 3; }
    PLAIT_INLINE_MEMBER bool change(State from, State to) {
        uint64_t word = __atomic_load_n(&word_, __ATOMIC_RELAXED);
        return state(word) == from &&
               __atomic_compare_exchange_n(&word_, &word, word - from + to, false, __ATOMIC_ACQ_REL,
                                           __ATOMIC_RELAXED);
    }

    uint64_t word_ = 0;  // the State in the lowest two bits, the number of the claim above them
};

}  // namespace plait::cpu
