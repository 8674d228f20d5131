// Attention over stored rows in two passes: the largest score of each query, then the plain
// softmax. Scores are made again in the second pass, with the same bits: cheaper than keeping one
// for every key that a context can have.
// Reference: tests/reference/attend.py.
#include "backend/cpu/kernels/attend_walk.h"

namespace plait::cpu::PLAIT_ISA {

int64_t attend_scores_tasks(const void* raw, const Frame& frame) {
    return count_attend_tasks(*static_cast<const AttendArgs*>(raw), frame);
}

void attend_scores(const void* raw, const Frame& frame, const Worker& worker, int64_t begin,
                   int64_t end) {
    const auto& args = *static_cast<const AttendArgs*>(raw);
    for_each_tile(args, frame, worker, begin, end, [](const Tile& tile, const KeyWalk& walk) {
        for_each_block(
            tile, walk,
            [&](const KeyBlock& block, int64_t from, int64_t to) {
                score(tile, block, from, to);
                for (int64_t i = from; i < to; ++i) {
                    if (tile.state[i].visible == 0) continue;
                    F32 x[kParts];
                    finish_scores(tile, block, i, x);
                    SoftmaxSum& sums = tile.state[i].partial;
                    sums.most = larger(sums.most, most_of(x));
                }
            },
            [] {});
        for (int64_t i = 0; i < tile.queries; ++i)
            tile.state[i].total.most = tile.state[i].partial.most;
        sum_keys(tile, walk, /*maxima_known=*/true);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
