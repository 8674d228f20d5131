// What a context saves.
#pragma once

#include <optional>
#include <vector>

#include "runtime/context.h"

namespace plait::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(Context& context, std::optional<SequenceId> sequence = {}) {
    Bytes bytes;
    context.session()->save_state(sequence, [&](uint64_t n) {
        bytes.resize(n);
        return std::span(bytes);
    });
    return bytes;
}

}  // namespace plait::test
