// Where the heads of a cache's rows are.
#pragma once

#include <stdint.h>

namespace plait::cpu {

// The plait::DTypes that a cache can have, number for number.
enum CacheType : uint8_t {
    kCacheF32 = 0,
    kCacheF16 = 1,
    kCacheBF16 = 2,
    kCacheQ8_0 = 4,
    kCacheQ4_0 = 5,
    kCacheQ4_1 = 6,
    kCacheQ5_0 = 7,
    kCacheQ5_1 = 8,
    kCacheIQ4_NL = 14,
};

// A row is its heads one after the other, each padded to whole blocks.
struct CacheLayout {
    uint8_t dtype;
    int64_t head_elements;
    int64_t head_bytes;
    int64_t row_bytes;
};

}  // namespace plait::cpu
