// Where the heads of a cache's rows are.
#pragma once

#include <stdint.h>

#include "tensor/dtype_enum.h"

namespace plait::cpu {

// A row is its heads one after the other, each padded to whole blocks.
struct CacheLayout {
    DType dtype;
    int64_t head_elements;
    int64_t head_bytes;
    int64_t row_bytes;
};

}  // namespace plait::cpu
