// Row rows[i] of a cache = row i of x, in the cache's type, each head padded with zeros to whole
// blocks. Reference: tests/reference/store_rows.py.
#include "backend/cpu/kernels/store_rows.h"

#include "backend/cpu/kernels/cache.h"

namespace plait::cpu::PLAIT_ISA {

// A task is a token.
int64_t store_rows_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const StoreRowsArgs*>(raw);
    return frame.rows(args.extent, args.fixed_rows);
}

// Scratch: head_elements floats.
void store_rows(const void* raw, const Frame& frame, const Worker& worker, int64_t begin,
                int64_t end) {
    const auto& args = *static_cast<const StoreRowsArgs*>(raw);
    const int32_t* rows = frame.at<const int32_t>(args.rows);
    const int64_t head_bytes =
        args.head_elements / block_elements(args.dtype) * block_bytes(args.dtype);
    float* padded = reinterpret_cast<float*>(worker.scratch);
    if (args.width < args.head_elements)
        memset(padded, 0, static_cast<size_t>(args.head_elements) * sizeof(float));
    for (int64_t t = begin; t < end; ++t) {
        const float* x = frame.at<const float>(args.x) + t * args.heads * args.width;
        unsigned char* row = frame.at<unsigned char>(args.storage) + rows[t] * args.row_bytes;
        for (int64_t h = 0; h < args.heads; ++h) {
            const float* head = x + h * args.width;
            if (args.width < args.head_elements) {
                memcpy(padded, head, static_cast<size_t>(args.width) * sizeof(float));
                head = padded;
            }
            encode_cache(args.dtype, head, row + h * head_bytes, args.head_elements);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
