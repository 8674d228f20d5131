// The keys that attention windows let a token see, and those that a cache has to keep for them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "batch/batch.h"
#include "memory/layout.h"

namespace plait {

// The positions begin <= p <= last.
struct PositionInterval {
    int64_t begin = 0;
    int64_t last = INT32_MAX;
};

// The positions that a token at position `own` sees, except that causality is not considered. Both
// ends are nondecreasing in `own`.
inline PositionInterval visible_positions(const Window& window, int64_t own) {
    const int64_t w = window.tokens;
    switch (window.kind) {
    case WindowKind::full: return {};
    case WindowKind::sliding: return {own - w + 1, INT32_MAX};
    case WindowKind::chunked: return {own / w * w, INT32_MAX};
    case WindowKind::symmetric: return {own - w / 2, own + w / 2};
    }
    return {};
}

// The first position whose key a sequence keeps if its last key is at position `last`. The sequence
// keeps the keys that its next token will see. It always keeps its last key, whose position and
// ordinal determine those of the next token.
inline Position oldest_kept(const Window& window, Position last) {
    const int64_t begin = visible_positions(window, int64_t{last} + 1).begin;
    return static_cast<Position>(std::clamp<int64_t>(begin, 0, last));
}

// Max keys that a sequence keeps between two calls, given one key per position.
inline int64_t max_kept(const Window& window) {
    const int64_t w = window.tokens;
    return std::max<int64_t>(1, window.kind == WindowKind::symmetric ? w / 2 : w - 1);
}

}  // namespace plait
