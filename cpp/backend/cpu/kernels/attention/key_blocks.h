// The walk over a sequence's keys in blocks. Their boundaries depend only on the keys' ordinals,
// not on the rows that hold the keys or on their division into runs.
#pragma once

#include "backend/cpu/kernels/attention/attend.h"

namespace plait::cpu {

// Has the layout of plait::Run.
struct KeyRun {
    int32_t row, count, first_key, ordinal;
};

// Up to kKeyBlock keys. A key's lane is ordinal % kKeyBlock; lanes and keys are both ascending.
struct KeyBlock {
    int32_t count = 0;
    int32_t first_ordinal = 0, last_ordinal = 0;
    uint32_t lanes = 0;      // bits of the lanes that have a key
    int32_t row[kKeyBlock];  // by entry
    int32_t key[kKeyBlock];
    uint8_t lane[kKeyBlock];

    // Bits of the lanes with keys first <= key < last.
    PLAIT_INLINE_MEMBER uint32_t visible(int32_t first, int32_t last) const {
        if (first <= key[0] && key[count - 1] < last) return lanes;
        uint32_t bits = 0;
        for (int32_t e = 0; e < count; ++e)
            if (first <= key[e] && key[e] < last) bits |= 1u << lane[e];
        return bits;
    }
    // True if a new split starts after the block `before`.
    PLAIT_INLINE_MEMBER bool starts_split(const KeyBlock& before) const {
        return first_ordinal / kKeySplit != before.first_ordinal / kKeySplit ||
               first_ordinal <= before.last_ordinal;
    }
};

struct KeyWalk {
    const KeyRun* run;
    const KeyRun* end;
    int32_t first, last;  // walks over keys first <= key < last
    int32_t offset = 0;   // into *run

    // The keys of *run that remain are [from, stop).
    PLAIT_INLINE_MEMBER int32_t from() const {
        return offset > first - run->first_key ? offset : first - run->first_key;
    }
    PLAIT_INLINE_MEMBER int32_t stop() const {
        return run->count < last - run->first_key ? run->count : last - run->first_key;
    }
    PLAIT_INLINE_MEMBER void next_run() {
        ++run;
        offset = 0;
    }

    // Moves to the next block. Returns false at the end.
    PLAIT_INLINE_MEMBER bool next(KeyBlock& block) {
        block.count = 0;
        block.lanes = 0;
        while (run != end) {
            const int32_t begin = from();
            const int32_t end_of_run = stop();
            if (begin >= end_of_run) {
                next_run();
                continue;
            }
            const int32_t ordinal = run->ordinal + begin;
            if (block.count == 0)
                block.first_ordinal = ordinal;
            else if (ordinal / kKeyBlock != block.first_ordinal / kKeyBlock ||
                     ordinal <= block.last_ordinal)
                return true;
            const int32_t lane = static_cast<int32_t>(ordinal % kKeyBlock);
            const int32_t room = static_cast<int32_t>(kKeyBlock) - lane;
            const int32_t n = end_of_run - begin < room ? end_of_run - begin : room;
            for (int32_t i = 0; i < n; ++i) {
                block.row[block.count] = run->row + begin + i;
                block.key[block.count] = run->first_key + begin + i;
                block.lane[block.count++] = static_cast<uint8_t>(lane + i);
                block.lanes |= 1u << (lane + i);
            }
            block.last_ordinal = ordinal + n - 1;
            offset = begin + n;
        }
        return block.count > 0;
    }
};

// Runs that shared_splits() compares, which bounds its time if the rows of a sequence are scattered.
constexpr int kMaxSharedRuns = 64;

// Returns the end of the last split that is in the same rows for two sequences, or a.first if there
// is none. Later keys do not belong to this split in either of them.
PLAIT_INLINE int32_t shared_splits(const KeyWalk& a, const KeyWalk& b) {
    int32_t end = a.first;
    if (a.first != b.first) return end;
    const int32_t last = a.last < b.last ? a.last : b.last;
    const KeyRun* y = b.run;
    for (const KeyRun* x = a.run; x != a.end && x - a.run < kMaxSharedRuns && y != b.end;
         ++x, ++y) {
        if (x->row != y->row || x->first_key != y->first_key || x->ordinal != y->ordinal) break;
        const int32_t n = x->count < y->count ? x->count : y->count;
        const int32_t stop = x->first_key + n < last ? x->first_key + n : last;
        const auto split = static_cast<int32_t>(kKeySplit);
        const int32_t boundary = (x->ordinal + stop - x->first_key) / split * split;
        if (boundary > x->ordinal) end = x->first_key + boundary - x->ordinal;
        if (x->count != y->count || stop != x->first_key + n) break;
    }
    return end > a.first ? end : a.first;
}

// Moves the keys of the next split from `rest` to `split`. Returns false at the end.
PLAIT_INLINE bool next_split(KeyWalk& rest, KeyWalk& split) {
    split = rest;
    int64_t number = -1;  // of the split
    int32_t before = -1;  // ordinal of the last key so far
    while (rest.run != rest.end) {
        const int32_t begin = rest.from();
        const int32_t stop = rest.stop();
        if (begin >= stop) {
            rest.next_run();
            continue;
        }
        const int32_t ordinal = rest.run->ordinal + begin;
        if (number < 0)
            number = ordinal / kKeySplit;
        else if (ordinal / kKeySplit != number || ordinal <= before)
            return true;
        const int64_t room = (number + 1) * kKeySplit - ordinal;
        const int32_t n = stop - begin < room ? stop - begin : static_cast<int32_t>(room);
        before = ordinal + n - 1;
        split.last = rest.run->first_key + begin + n;
        rest.offset = begin + n;
    }
    return number >= 0;
}

}  // namespace plait::cpu
