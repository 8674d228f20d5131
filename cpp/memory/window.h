// Which keys a token sees through a window, by position.
#pragma once

#include <algorithm>
#include <cstdint>

#include "batch/batch.h"
#include "memory/layout.h"

namespace plait {

// Positions begin <= p <= last.
struct Sight {
    int64_t begin = 0;
    int64_t last = INT32_MAX;
};

// Of a token at `own`. Both ends rise with it.
inline Sight sight(const Window& window, int64_t own) {
    const int64_t w = window.tokens;
    switch (window.kind) {
    case WindowKind::full: return {};
    case WindowKind::sliding: return {own - w + 1, INT32_MAX};
    case WindowKind::chunked: return {own / w * w, INT32_MAX};
    case WindowKind::symmetric: return {own - w / 2, own + w / 2};
    }
    return {};
}

// A sequence that ends at position `last` keeps what its next token sees, and always its last key:
// that is where it goes on. Keys before this position are given back.
inline Position oldest_kept(const Window& window, Position last) {
    const int64_t begin = sight(window, int64_t{last} + 1).begin;
    return static_cast<Position>(std::clamp<int64_t>(begin, 0, last));
}

// Max keys, at one key per position, that a sequence keeps between two calls.
inline int64_t max_kept(const Window& window) {
    const int64_t w = window.tokens;
    return std::max<int64_t>(1, window.kind == WindowKind::symmetric ? w / 2 : w - 1);
}

}  // namespace plait
