// y_t = x_(t-1).  RWKV, arXiv:2305.13048.  Reference: tests/reference/token_shift.py.
#include "backend/cpu/kernels/token_shift.h"

#include <string.h>

namespace plait::cpu::PLAIT_ISA {

int64_t token_shift_tasks(const void* raw, const Frame& frame) {
    return chunk_tasks(static_cast<const TokenShiftArgs*>(raw)->width, kShiftChunk, frame);
}

void token_shift(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const TokenShiftArgs*>(raw);
    for (int64_t task = begin; task < end; ++task) {
        const ChunkTask chunk = chunk_task(args.width, kShiftChunk, frame, task);
        const Passage tokens = passage(args.states, frame, chunk.sequence);
        const float* x = frame.at<const float>(args.x) + chunk.first;
        float* y = frame.at<float>(args.y) + chunk.first;
        const size_t bytes = static_cast<size_t>(chunk.n) * sizeof(float);
        const float* before = tokens.from + chunk.first;
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            memcpy(y + t * args.width, before, bytes);
            before = x + t * args.width;
        }
        memcpy(tokens.to + chunk.first, before, bytes);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
