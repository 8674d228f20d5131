// The error for a node that no device can compute.
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait {

[[noreturn]] inline void no_kernel(std::string_view device, const Node& node) {
    throw UnsupportedError(
        text(device, ": no kernel for ", op_name(node.op), " of ", to_string(node.type)));
}

}  // namespace plait
