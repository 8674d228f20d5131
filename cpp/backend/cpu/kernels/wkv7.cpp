// RWKV-7, arXiv:2503.14456:
//   S = S diag(w) + (S a^T) b + v^T k,  y = S r^T
// with S [values, keys] for each head.  Reference: tests/reference/wkv7.py.
#include "backend/cpu/kernels/wkv7.h"

#include "backend/cpu/kernels/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

int64_t wkv7_tasks(const void* raw, const Frame& frame) {
    return tile_tasks(static_cast<const Wkv7Args*>(raw)->states, frame);
}

void wkv7(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const Wkv7Args*>(raw);
    const int64_t dim = args.states.rows;
    const int64_t token = args.states.heads * dim;  // from one to the next
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        walk(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t head = t * token + tile.head * dim;
            const float* r = frame.at<const float>(args.r) + head;
            const float* w = frame.at<const float>(args.w) + head;
            const float* k = frame.at<const float>(args.k) + head;
            const float* a = frame.at<const float>(args.a) + head;
            const float* b = frame.at<const float>(args.b) + head;
            const Row v = columns.load(frame.at<const float>(args.v) + head + tile.first);
            if (t + 1 < tile.tokens.end) {
                prefetch(r + token, dim);
                prefetch(w + token, dim);
                prefetch(k + token, dim);
                prefetch(a + token, dim);
                prefetch(b + token, dim);
            }
            const Row s_a = sum_rows(dim, [&](int64_t i, const Row& sum) {
                return fma(F32::set(a[i]), columns.load(from + i * columns.n), sum);
            });
            const Row y = step_rows(dim, [&](int64_t i, const Row& sum) {
                const Row added = fma(F32::set(b[i]), s_a, F32::set(k[i]) * v);
                const Row s = fma(F32::set(w[i]), columns.load(from + i * columns.n), added);
                columns.store(s, to + i * columns.n);
                return fma(F32::set(r[i]), s, sum);
            });
            columns.store(y, frame.at<float>(args.y) + head + tile.first);
        });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
