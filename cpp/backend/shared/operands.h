// What bindings of several backends compute from a node.
#pragma once

#include "backend/shared/positions.h"
#include "graph/graph.h"

namespace plait {

RopeFrequencies rope_frequencies(const Rope& rope);

// The layout of a cache's rows if each holds `heads` heads, one after the other, each padded to whole
// blocks.
struct HeadLayout {
    DType dtype;
    int64_t head_elements;
    int64_t head_bytes;
    int64_t row_bytes;
};
HeadLayout head_layout(const TensorType& storage, int64_t heads);

inline int64_t row_elements(const TensorType& type) {
    return type.shape[0] == 0 ? 0 : type.shape.elements() / type.shape[0];
}

}  // namespace plait
