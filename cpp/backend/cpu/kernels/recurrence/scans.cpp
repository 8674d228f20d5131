// The scans of Mamba and Mamba-2.
#include "backend/cpu/kernels/recurrence/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

// The selective scan of Mamba, arXiv:2312.00752, algorithm 2:
//   h = exp(dt a) h + (dt x) b,  y = c h + d x
// with h [k] for each channel.  Reference: tests/reference/selective_scan.py.
int64_t selective_scan_tasks(const SelectiveScanArgs& args, const Frame& frame) {
    return tile_tasks(args.states, frame);
}

// Scratch: k * 32 floats.
void selective_scan(const SelectiveScanArgs& args, const Frame& frame, const Worker& worker,
                    int64_t begin, int64_t end) {
    const int64_t k = args.states.rows;
    const int64_t channels = args.states.columns;
    // a / ln 2 of a tile's channels, [k, 32]: exp(dt a) is 2^(dt a / ln 2).
    float* a = reinterpret_cast<float*>(worker.scratch);
    int64_t prepared = -1;
    for (int64_t task = begin; task < end; ++task) {
        // The outer loop is over tiles, so that a tile's part of `a` is used for all sequences.
        const TileTask tile =
            tile_task(args.states, frame, task % frame.n_sequences, task / frame.n_sequences);
        if (prepared != tile.first)
            transpose_channels(frame.at<const float>(args.a) + tile.first * k, tile.n, k,
                               static_cast<float>(M_LOG2E), a, kTileColumns);
        prepared = tile.first;
        for_each_token(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t at = t * channels + tile.first;
            const float* b = frame.at<const float>(args.b) + t * k;
            const float* c = frame.at<const float>(args.c) + t * k;
            const StateRow x = columns.load(frame.at<const float>(args.x) + at);
            const StateRow dt = columns.load(frame.at<const float>(args.dt) + at);
            const StateRow d = columns.load(frame.at<const float>(args.d) + tile.first);
            const StateRow dt_x = dt * x;
            const StateRow y = step_rows(k, [&](int64_t i, const StateRow& sum) {
                const StateRow decay = exp2(dt * columns.load(a + i * kTileColumns));
                const StateRow h =
                    fma(decay, columns.load(from + i * columns.n), F32::set(b[i]) * dt_x);
                columns.store(h, to + i * columns.n);
                return fma(F32::set(c[i]), h, sum);
            });
            columns.store(fma(d, x, y), frame.at<float>(args.y) + at);
        });
    }
}

// The scan of Mamba-2, arXiv:2405.21060, with one decay per head:
//   h = exp(dt a) h + (dt x) b^T,  y = h c + d x
// with h [p, k] for each head.  Reference: tests/reference/ssd_scan.py.
int64_t ssd_scan_tasks(const SsdScanArgs& args, const Frame& frame) {
    return tile_tasks(args.states, frame);
}

void ssd_scan(const SsdScanArgs& args, const Frame& frame, const Worker&, int64_t begin,
              int64_t end) {
    const int64_t heads = args.states.heads;
    const int64_t k = args.states.rows;
    for (int64_t task = begin; task < end; ++task) {
        const TileTask tile = tile_task(args.states, frame, task);
        const int64_t group = tile.head / (heads / args.groups);
        const F32 a = F32::set(frame.at<const float>(args.a)[tile.head]);
        const F32 d = F32::set(frame.at<const float>(args.d)[tile.head]);
        for_each_token(tile, [&](auto columns, int64_t t, const float* from, float* to) {
            const int64_t at = (t * heads + tile.head) * args.states.columns + tile.first;
            const float* b = frame.at<const float>(args.b) + (t * args.groups + group) * k;
            const float* c = frame.at<const float>(args.c) + (t * args.groups + group) * k;
            const F32 dt = F32::set(frame.at<const float>(args.dt)[t * heads + tile.head]);
            const F32 decay = exp(dt * a);
            const StateRow x = columns.load(frame.at<const float>(args.x) + at);
            const StateRow dt_x = dt * x;
            const StateRow y = step_rows(k, [&](int64_t i, const StateRow& sum) {
                const StateRow h =
                    fma(decay, columns.load(from + i * columns.n), F32::set(b[i]) * dt_x);
                columns.store(h, to + i * columns.n);
                return fma(F32::set(c[i]), h, sum);
            });
            columns.store(fma(d, x, y), frame.at<float>(args.y) + at);
        });
    }
}

}  // namespace plait::cpu::PLAIT_ISA
