// Row to[i] = row from[i], one after the other.  Reference: tests/reference/copy_rows.py.
#include "backend/cpu/kernels/copy_rows.h"

#include <string.h>

namespace plait::cpu::PLAIT_ISA {

constexpr int64_t kSliceBytes = 1024;

// A task is a slice of every row, so that a row that is both source and target keeps its turn.
int64_t copy_rows_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const CopyRowsArgs*>(raw);
    if (frame.rows(args.extent, args.fixed_rows) == 0) return 0;
    return (args.row_bytes + kSliceBytes - 1) / kSliceBytes;
}

void copy_rows(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const CopyRowsArgs*>(raw);
    const int64_t moves = frame.rows(args.extent, args.fixed_rows);
    const int32_t* from = frame.at<const int32_t>(args.from);
    const int32_t* to = frame.at<const int32_t>(args.to);
    const int64_t first = begin * kSliceBytes;
    const int64_t last = end * kSliceBytes < args.row_bytes ? end * kSliceBytes : args.row_bytes;
    unsigned char* storage = frame.at<unsigned char>(args.storage) + first;
    for (int64_t i = 0; i < moves; ++i) {
        if (from[i] == to[i]) continue;
        memcpy(storage + to[i] * args.row_bytes, storage + from[i] * args.row_bytes,
               static_cast<size_t>(last - first));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
