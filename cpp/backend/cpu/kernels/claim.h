// Tasks that a thread has taken, which another may take over while the system has set the first aside.
#pragma once

#include <stdint.h>

#include "base/inline.h"

namespace plait::cpu {

// The owner computes into memory of its own and commits what it made, piece by piece. A claim that was
// lost commits nothing more: whatever has become of the owner's inputs by then, it does no harm.
// Builtins instead of std::atomic: see frame.h.
class Claim {
public:
    // The owner's calls.
    PLAIT_INLINE_MEMBER void open() {
        __atomic_store_n(&word_, (__atomic_load_n(&word_, __ATOMIC_RELAXED) | 3) + 1 + kOpen,
                         __ATOMIC_RELEASE);
    }
    // Whether nobody has taken it over. If so, what was read before, with acquire, was the run's.
    PLAIT_INLINE_MEMBER bool holds() const {
        return state(__atomic_load_n(&word_, __ATOMIC_RELAXED)) == kOpen;
    }
    // False once it is lost. What is written between the two is seen by whoever takes it over.
    PLAIT_INLINE_MEMBER bool begin_commit() { return change(kOpen, kCommitting); }
    PLAIT_INLINE_MEMBER void end_commit() {
        __atomic_store_n(&word_, __atomic_load_n(&word_, __ATOMIC_RELAXED) - kCommitting + kOpen,
                         __ATOMIC_RELEASE);
    }
    // Whether the owner did the tasks, and nobody else.
    PLAIT_INLINE_MEMBER bool close() { return change(kOpen, kNone); }

    // Other threads': a claim that is open now, and can be taken over as long as it is that one.
    PLAIT_INLINE_MEMBER bool look(uint64_t* seen) const {
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

    uint64_t word_ = 0;  // a state in the lowest two bits, above them the claim's number
};

}  // namespace plait::cpu
