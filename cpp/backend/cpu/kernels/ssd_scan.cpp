// The scan of Mamba-2, arXiv:2405.21060, with one decay a head:
//   h = exp(dt a) h + (dt x) b^T,  y = h c + d x
// with h [p, k] for each head.  Reference: tests/reference/ssd_scan.py.
#include "backend/cpu/kernels/ssd_scan.h"

#include "backend/cpu/kernels/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

int64_t ssd_scan_tasks(const void* raw, const Frame& frame) {
    return tile_tasks(static_cast<const SsdScanArgs*>(raw)->states, frame);
}

void ssd_scan(const void* raw, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto& args = *static_cast<const SsdScanArgs*>(raw);
    const int64_t heads = args.states.heads;
    const int64_t k = args.states.rows;
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        const int64_t group = tile.head / (heads / args.groups);
        const F32 a = F32::set(frame.at<const float>(args.a)[tile.head]);
        const F32 d = F32::set(frame.at<const float>(args.d)[tile.head]);
        walk(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t at = (t * heads + tile.head) * args.states.columns + tile.first;
            const float* b = frame.at<const float>(args.b) + (t * args.groups + group) * k;
            const float* c = frame.at<const float>(args.c) + (t * args.groups + group) * k;
            const F32 dt = F32::set(frame.at<const float>(args.dt)[t * heads + tile.head]);
            const F32 decay = exp(dt * a);
            const Row x = columns.load(frame.at<const float>(args.x) + at);
            const Row dt_x = dt * x;
            const Row y = step_rows(k, [&](int64_t i, const Row& sum) {
                const Row h = fma(decay, columns.load(from + i * columns.n), F32::set(b[i]) * dt_x);
                columns.store(h, to + i * columns.n);
                return fma(F32::set(c[i]), h, sum);
            });
            columns.store(fma(d, x, y), frame.at<float>(args.y) + at);
        });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
