// The layout of the heads in the rows of a cache.
#pragma once

#include <stdint.h>

#include "tensor/dtype_enum.h"

namespace plait {

// A row holds its heads in order, each padded to whole blocks.
struct CacheLayout {
    DType dtype;
    int64_t head_elements;
    int64_t head_bytes;
    int64_t row_bytes;
};

}  // namespace plait
