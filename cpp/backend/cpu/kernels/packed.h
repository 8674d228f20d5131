// How a packed weight matrix looks to a kernel.
#pragma once

#include <stdint.h>

namespace plait::cpu {

struct PackedWeight {
    const unsigned char* data;  // 64-byte aligned
    uint8_t dtype;              // plait::DType of the file
    int64_t rows;               // outputs of one matrix
    int64_t columns;            // inputs
    int64_t matrices;           // experts; 1 for a plain matrix
    int64_t panel_bytes;        // a panel: the layout's rows at a time over all columns
    int64_t matrix_bytes;
};

}  // namespace plait::cpu
