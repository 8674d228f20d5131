// Attention over stored rows in one pass, with a running softmax.
// Reference: tests/reference/attend.py.
#include "backend/cpu/kernels/attend_walk.h"

namespace plait::cpu::PLAIT_ISA {

int64_t attend_tasks(const void* raw, const Frame& frame) {
    return count_attend_tasks(*static_cast<const AttendArgs*>(raw), frame);
}

void attend(const void* raw, const Frame& frame, const Worker& worker, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const AttendArgs*>(raw);
    for_each_tile(args, frame, worker, begin, end, [](const Tile& tile, const KeyWalk& walk) {
        sum_keys(tile, walk, /*maxima_known=*/false);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
