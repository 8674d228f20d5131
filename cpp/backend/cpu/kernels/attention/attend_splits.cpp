// Attention's sums over splits of the keys, where tiles alone would leave threads without work;
// otherwise there are no tasks. A task is a split of a tile's keys.
#include "backend/cpu/kernels/attention/attend_walk.h"

namespace plait::cpu::PLAIT_ISA {

int64_t attend_splits_tasks(const AttendArgs& args, const Frame& frame) {
    const AttendCut cut = cut_attention(args, frame);
    return cut.splits * cut.head_tiles;
}

void attend_splits(const AttendArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
                   int64_t end) {
    const AttendCut cut = cut_attention(args, frame);
    for (int64_t task = begin; task < end; ++task) {
        const SplitPlace place = find_split(args, frame, cut, task / cut.head_tiles);
        const HeadTile heads = head_tile(args, cut, task % cut.head_tiles);
        const SplitSums sums = split_sums(args, frame, cut, task);
        Tile tile = make_tile(args, frame, worker, place.tokens, heads);
        tile.partial = sums.values;
        const int64_t n = tile.queries() * heads.kv_heads;
        for (int64_t i = 0; i < n; ++i) start_partial(tile, i, kMinusInfinity);
        sum_keys(tile, heads.kv_heads, place.keys, [] {});
        for (int64_t i = 0; i < n; ++i) sums.softmax[i] = finished_partial(tile, i);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
