// The walk over a sequence's keys in blocks whose borders depend on the keys' ordinals alone: not
// on the rows that hold them, nor on how runs divide them.
#pragma once

#include "backend/cpu/kernels/attend.h"

namespace plait::cpu {

// plait::Run, as the sixteen bytes that they are.
struct KeyRun {
    int32_t row, count, first_key, ordinal;
};

// Up to kKeyBlock keys. A key's lane is ordinal % kKeyBlock; lanes and keys go up together.
struct KeyBlock {
    int32_t count = 0;
    int32_t first_ordinal = 0, last_ordinal = 0;
    uint32_t lanes = 0;            // bit of each lane that has a key
    int32_t row[kKeyBlock];        // by entry
    int32_t key[kKeyBlock];
    uint8_t lane[kKeyBlock];

    // The lanes of keys first <= key < last.
    PLAIT_INLINE_MEMBER uint32_t visible(int32_t first, int32_t last) const {
        if (first <= key[0] && key[count - 1] < last) return lanes;
        uint32_t bits = 0;
        for (int32_t e = 0; e < count; ++e)
            if (first <= key[e] && key[e] < last) bits |= 1u << lane[e];
        return bits;
    }
    // Whether sums that ended with `before` are closed here.
    PLAIT_INLINE_MEMBER bool starts_split(const KeyBlock& before) const {
        return first_ordinal / kKeySplit != before.first_ordinal / kKeySplit ||
               first_ordinal <= before.last_ordinal;
    }
};

struct KeyWalk {
    const KeyRun* run;
    const KeyRun* end;
    int32_t first, last;   // keys of interest
    int32_t offset = 0;    // into *run

    // The next block, of the keys of interest alone. False at the end.
    PLAIT_INLINE_MEMBER bool next(KeyBlock& block) {
        block.count = 0;
        block.lanes = 0;
        while (run != end) {
            const int32_t begin = offset > first - run->first_key ? offset : first - run->first_key;
            const int32_t stop =
                run->count < last - run->first_key ? run->count : last - run->first_key;
            if (begin >= stop) {
                ++run;
                offset = 0;
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
            const int32_t n = stop - begin < room ? stop - begin : room;
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

}  // namespace plait::cpu
