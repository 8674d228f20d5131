// The attention kernels. `attend` works in one pass, with a running softmax; a task is a tile. If
// attend_splits has summed the splits of the tiles' keys, `attend` only merges them, in order.
// Reference: tests/reference/attend.py.
#include "backend/cpu/kernels/attention/attend_walk.h"

namespace plait::cpu::PLAIT_ISA {

static inline void sum_tile(const AttendArgs& args, const Frame& frame, const Worker& worker,
                            const TokenTile& tokens, const HeadTile& heads) {
    const Tile tile = make_tile(args, frame, worker, tokens, heads);
    const int64_t n = tile.queries() * heads.kv_heads;
    for (int64_t i = 0; i < n; ++i) start_partial(tile, i, kMinusInfinity);
    sum_keys(tile, heads.kv_heads, tokens.walk, [&] { close_partials(tile, n, false); });
    for (int64_t i = 0; i < n; ++i)
        write_result(args, frame, row_of(args, tokens, heads, i), tile.query[i].total,
                     tile.total + i * tile.width);
}

// Merges the splits of a tile. `task` is the task of its first split; the others follow, head_tiles
// apart.
static inline void merge_tile(const AttendArgs& args, const Frame& frame, const Worker& worker,
                              const AttendCut& cut, const TokenTile& tokens, const HeadTile& heads,
                              int64_t task) {
    const int64_t width = whole_registers(args.value_dim);
    const int64_t splits = count_splits(tokens.walk);
    float* values = reinterpret_cast<float*>(worker.scratch);
    for (int64_t i = 0; i < tokens.count * heads.count * heads.kv_heads; ++i) {
        SoftmaxSum total{kMinusInfinity, 0.0f, 0};
        for (int64_t k = 0; k < splits; ++k) {
            const SplitSums sums = split_sums(args, frame, cut, task + k * cut.head_tiles);
            merge(total, values, sums.softmax[i], sums.values + i * width, width);
        }
        write_result(args, frame, row_of(args, tokens, heads, i), total, values);
    }
}

int64_t attend_tasks(const AttendArgs& args, const Frame& frame) {
    const AttendCut cut = cut_attention(args, frame);
    return cut.token_tiles * cut.head_tiles;
}

void attend(const AttendArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
            int64_t end) {
    const AttendCut cut = cut_attention(args, frame);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t index = task / cut.head_tiles;
        const TokenTile tokens = token_tile(args, frame, cut.tokens, index);
        const HeadTile heads = head_tile(args, cut, task % cut.head_tiles);
        if (cut.splits == 0) {
            sum_tile(args, frame, worker, tokens, heads);
            continue;
        }
        int64_t before = 0;  // splits of earlier tiles
        for (int64_t i = 0; i < index; ++i)
            before += count_splits(token_tile(args, frame, cut.tokens, i).walk);
        merge_tile(args, frame, worker, cut, tokens, heads,
                   before * cut.head_tiles + task % cut.head_tiles);
    }
}

// Attention in two passes: the first finds the largest score of each query, the second computes the
// plain softmax. It recomputes the scores, with the same bits, which costs less than storing one
// for every key of a long context. Reference: tests/reference/attend.py.
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
                    F32 x[kScoreRegisters];
                    finish_scores(head, block, i, x);
                    head.query[i].total.max = max_of(head.query[i].total.max, x);
                }
            },
            [] {});
        for (int64_t i = 0; i < n; ++i) start_partial(tile, i, tile.query[i].total.max);
        sum_keys(tile, heads.kv_heads, tokens.walk, [&] { close_partials(tile, n, true); });
        for (int64_t i = 0; i < n; ++i)
            write_result(args, frame, row_of(args, tokens, heads, i), tile.query[i].total,
                         tile.total + i * tile.width);
    }
}

// Sums over splits of the keys, if there are too few tiles for all threads; otherwise it has no
// tasks. A task is a split of a tile's keys.
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
        for (int64_t i = 0; i < n; ++i) sums.softmax[i] = closed_partial(tile, i);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
