// Attention in two passes: the largest score of each query, then the plain softmax. Scores are made
// again in the second pass, with the same bits: cheaper than keeping one for every key that a
// context can have.
// Reference: tests/reference/attend.py.
#include "backend/cpu/kernels/attention/attend_walk.h"

namespace plait::cpu::PLAIT_ISA {

void attend_scores(const AttendArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
                   int64_t end) {
    const AttendCut cut = cut_attention(args, frame);
    for (int64_t task = begin; task < end; ++task) {
        const TokenTile tokens = token_tile(args, frame, cut.tokens, task / cut.head_tiles);
        const HeadTile heads = head_tile(args, cut, task % cut.head_tiles);
        const Tile tile = make_tile(args, frame, worker, tokens, heads);
        const int64_t n = tile.queries() * heads.kv_heads;
        for_each_block(
            tile, heads.kv_heads, tokens.walk,
            [&](const Tile& head, const KeyBlock& block, int64_t from, int64_t to) {
                score(head, block, from, to);
                for (int64_t i = from; i < to; ++i) {
                    if (head.query[i].visible == 0) continue;
                    F32 x[kParts];
                    finish_scores(head, block, i, x);
                    head.query[i].total.most = most_of(head.query[i].total.most, x);
                }
            },
            [] {});
        for (int64_t i = 0; i < n; ++i) start_partial(tile, i, tile.query[i].total.most);
        sum_keys(tile, heads.kv_heads, tokens.walk, [&] { close_partials(tile, n, true); });
        for (int64_t i = 0; i < n; ++i)
            write_result(args, frame, row_of(args, tokens, heads, i), tile.query[i].total,
                         tile.total + i * tile.width);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
