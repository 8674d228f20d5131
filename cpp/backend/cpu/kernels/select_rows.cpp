// Row i of y = row rows[i] of x.  Reference: tests/reference/select_rows.py.
#include "backend/cpu/kernels/select_rows.h"

#include <string.h>

namespace plait::cpu::PLAIT_ISA {

// A task is a row.
int64_t select_rows_tasks(const void* raw, const Frame& frame) {
    const auto& args = *static_cast<const SelectRowsArgs*>(raw);
    return frame.rows(args.extent, args.fixed_rows);
}

void select_rows(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const SelectRowsArgs*>(raw);
    const int32_t* rows = frame.at<const int32_t>(args.rows);
    for (int64_t i = begin; i < end; ++i)
        memcpy(frame.at<unsigned char>(args.y) + i * args.row_bytes,
               frame.at<const unsigned char>(args.x) + rows[i] * args.row_bytes,
               static_cast<size_t>(args.row_bytes));
}

}  // namespace plait::cpu::PLAIT_ISA
