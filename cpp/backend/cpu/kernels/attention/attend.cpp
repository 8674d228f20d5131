// The attention kernels. `attend` works in one pass, with a running softmax; a task is a tile. If
// attend_splits has summed the splits of the tiles' keys, `attend` only merges them, in order.
// Reference: tests/reference/attend.py.
#include "backend/cpu/kernels/attention/attend_cut.h"
#include "backend/cpu/kernels/attention/attend_softmax.h"
#include "backend/cpu/kernels/attention/rotate.h"
#include "backend/shared/positions.h"

namespace plait::cpu::PLAIT_ISA {

// Query heads [first, first + count) of kv head `kv_head`, and as many of each of the kv_heads - 1
// kv heads after it.
struct HeadTile {
    int64_t kv_head, kv_heads;
    int64_t first, count;
};

PLAIT_INLINE HeadTile head_tile(const AttendArgs& args, const AttendCut& cut, int64_t index) {
    const int64_t group = args.heads / args.kv_heads;
    const int64_t parts = divide_up(group, cut.heads);
    HeadTile t;
    t.kv_head = index / parts * cut.kv_heads;
    const int64_t kv_left = args.kv_heads - t.kv_head;
    t.kv_heads = kv_left < cut.kv_heads ? kv_left : cut.kv_heads;
    const int64_t begin = index % parts * cut.heads;
    t.first = t.kv_head * group + begin;
    t.count = group - begin < cut.heads ? group - begin : cut.heads;
    return t;
}

// The row of a query's result, among all heads of all tokens.
PLAIT_INLINE int64_t row_of(const AttendArgs& args, const TokenTile& tokens, const HeadTile& heads,
                            int64_t query) {
    const int64_t kv = query / (tokens.count * heads.count);
    const int64_t token = tokens.begin + query / heads.count % tokens.count;
    const int64_t head = heads.first + kv * (args.heads / args.kv_heads) + query % heads.count;
    return token * args.heads + head;
}

// Lists a head's biases by key position - position, from -max_distance to max_distance. `weights`
// is [buckets, heads] and starts at the head's column.
static inline void list_biases(const AttendArgs& args, const float* weights, float* biases) {
    const int32_t buckets = args.both_directions ? args.buckets / 2 : args.buckets;
    const auto bias = [&](int32_t bucket) { return weights[int64_t{bucket} * args.heads]; };
    float* middle = biases + args.max_distance;
    for_each_distance(buckets, args.max_distance, [&](int32_t distance, int32_t bucket) {
        middle[distance] = bias(args.both_directions ? buckets + bucket : 0);
        middle[-distance] = bias(bucket);  // also for distance 0
    });
}

// Sets up a task's tile and its queries in the worker's scratch.
static inline Tile make_tile(const AttendArgs& args, const Frame& frame, const Worker& worker,
                             const TokenTile& tokens, const HeadTile& heads) {
    const AttendScratch at = attend_scratch(args);
    float* scratch = reinterpret_cast<float*>(worker.scratch);
    const Tile tile{
        args,
        frame.at<const unsigned char>(args.keys) + heads.kv_head * args.key_cache.head_bytes,
        frame.at<const unsigned char>(args.values) + heads.kv_head * args.value_cache.head_bytes,
        tokens.count,
        heads.count,
        tokens.count * heads.count,
        whole_registers(args.value_dim),
        args.bias_kind == PositionBias::none
            ? nullptr
            : frame.at<const int32_t>(args.key_positions) +
                  frame.at<const int32_t>(args.key_begin)[tokens.sequence],
        scratch + at.rows,
        scratch + at.squares,
        scratch + at.positions,
        scratch + at.scores,
        scratch + at.partial,
        scratch + at.lanes,
        scratch + at.total,
        reinterpret_cast<Query*>(scratch + at.queries),
        nullptr,
        nullptr,
    };
    float* lists = scratch + at.biases;
    const int64_t n = tile.queries() * heads.kv_heads;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t row = row_of(args, tokens, heads, i);
        const int64_t token = row / args.heads;
        const int64_t head = row % args.heads;
        Query& query = tile.query[i];
        query = {};
        query.q = frame.at<const float>(args.q) + row * args.key_dim;
        query.first = frame.at<const int32_t>(args.first)[token];
        query.last = frame.at<const int32_t>(args.last)[token];
        query.total.max = kMinusInfinity;
        if (args.bias_kind == PositionBias::none) continue;
        query.position = frame.at<const int32_t>(args.positions)[token * args.position_stride];
        const int64_t kv = i / tile.queries();
        if (args.bias_kind == PositionBias::alibi) {
            query.slope = alibi_slope(args.max_bias, head, args.heads);
        } else {
            float* biases = lists + (kv * heads.count + i % heads.count) * bias_row(args);
            if (i % tile.queries() < heads.count)
                list_biases(args, frame.at<const float>(args.bias) + head, biases);
            query.biases = biases + args.max_distance;
        }
    }
    return tile;
}

// Calls step(tile, block, begin, end) for every kv head and every block with keys that some of its
// queries begin <= i < end see, after setting their `visible`. Calls split() at the end of each
// split.
template <typename Step, typename Split>
PLAIT_INLINE void for_each_block(const Tile& tile, int64_t kv_heads, KeyWalk walk, Step step,
                                 Split split) {
    KeyBlock blocks[3];  // the previous block, the current one, and the one that is prefetched
    BlockRows rows[3];
    Tile head = tile;
    int now = 0;
    bool more = walk.next(blocks[0]);
    if (more) locate(tile.args, blocks[0], rows[0]);
    for (bool first = true; more; first = false) {
        const KeyBlock& block = blocks[now];
        const BlockRows& block_rows = rows[now];
        if (!first && block.starts_split(blocks[(now + 2) % 3])) split();
        now = (now + 1) % 3;
        more = walk.next(blocks[now]);
        if (more) locate(tile.args, blocks[now], rows[now]);
        list_positions(tile, block);
        const int64_t n = tile.queries();
        int64_t begin = n, end = n;  // queries that see some of the block
        for (int64_t i = 0; i < n; ++i) {
            Query& query = tile.query[i];
            query.visible = block.visible(query.first, query.last);
            for (int64_t kv = 1; kv < kv_heads; ++kv)
                tile.query[kv * tile.stride + i].visible = query.visible;
            if (query.visible == 0) continue;
            if (begin == n) begin = i;
            end = i + 1;
        }
        if (begin == end) continue;
        head.now = &block_rows;
        head.next = more ? &rows[now] : nullptr;
        for (int64_t kv = 0; kv < kv_heads; ++kv) {
            step(head, block, begin, end);
            head.move(1);
        }
        head.move(-kv_heads);
    }
}

// Sums over all keys of the walk and calls close() at the end of every split. If the maxima are
// known in advance, every factor is one.
template <typename Close>
PLAIT_INLINE void sum_keys(const Tile& tile, int64_t kv_heads, const KeyWalk& walk, Close close) {
    for_each_block(
        tile, kv_heads, walk,
        [&](const Tile& head, const KeyBlock& block, int64_t begin, int64_t end) {
            score(head, block, begin, end);
            for (int64_t i = begin; i < end; ++i)
                if (head.query[i].visible != 0) softmax_step(head, block, i);
            add_values(head, block, begin, end);
        },
        close);
    close();
}

// Merges the partial sums of n queries into their totals and starts new partial sums.
PLAIT_INLINE void close_partials(const Tile& tile, int64_t n, bool maxima_known) {
    for (int64_t i = 0; i < n; ++i) {
        Query& query = tile.query[i];
        if (!query.partial.has_keys) continue;
        merge(query.total, tile.total + i * tile.width, closed_partial(tile, i),
              tile.partial + i * tile.width, tile.width);
        start_partial(tile, i, maxima_known ? query.total.max : kMinusInfinity);
    }
}

PLAIT_INLINE void write_result(const AttendArgs& args, const Frame& frame, int64_t row,
                               const SoftmaxSum& total, const float* values) {
    const float* sink =
        args.has_sinks ? frame.at<const float>(args.sinks) + row % args.heads : nullptr;
    float* y = frame.at<float>(args.y) + row * args.value_dim;
    write_mean(args, total, values, sink, y);
    if (args.hadamard) transform_blocks(y, args.value_dim, args.hadamard);
}

// Calls visit(tile, walk) for all keys of a tile's queries: once, or for the keys that its sequences
// share and then for the other keys of each sequence.
template <typename Visit>
PLAIT_INLINE void for_each_walk(const Tile& tile, const Frame& frame, const TokenTile& tokens,
                                Visit visit) {
    visit(tile, tokens.walk);
    if (tokens.sequences == 1) return;
    const AttendArgs& args = tile.args;
    const int32_t* token_begin = frame.at<const int32_t>(args.token_begin);
    for (int32_t s = tokens.sequence; s < tokens.sequence + tokens.sequences; ++s) {
        const int64_t before = (token_begin[s] - tokens.begin) * tile.heads;  // queries
        Tile own = tile;
        own.tokens = token_begin[s + 1] - token_begin[s];
        own.scores += before * kKeyBlock;
        own.partial += before * tile.width;
        own.lanes += before * 16;
        own.total += before * tile.width;
        own.query += before;
        if (tile.key_positions)
            own.key_positions = frame.at<const int32_t>(args.key_positions) +
                                frame.at<const int32_t>(args.key_begin)[s];
        KeyWalk walk = walk_of(args, frame, s);
        walk.first = tokens.walk.last;
        visit(own, walk);
    }
}

static inline void sum_tile(const AttendArgs& args, const Frame& frame, const Worker& worker,
                            const TokenTile& tokens, const HeadTile& heads) {
    const Tile tile = make_tile(args, frame, worker, tokens, heads);
    const int64_t n = tile.queries() * heads.kv_heads;
    for (int64_t i = 0; i < n; ++i) start_partial(tile, i, kMinusInfinity);
    for_each_walk(tile, frame, tokens, [&](const Tile& part, const KeyWalk& walk) {
        sum_keys(part, heads.kv_heads, walk, [&] { close_partials(tile, n, false); });
    });
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
        const TokenTile tokens = token_tile(args, frame, cut, index);
        const HeadTile heads = head_tile(args, cut, task % cut.head_tiles);
        if (cut.splits == 0) {
            sum_tile(args, frame, worker, tokens, heads);
            continue;
        }
        int64_t before = 0;  // splits of earlier tiles
        for (int64_t i = 0; i < index; ++i)
            before += count_splits(token_tile(args, frame, cut, i).walk);
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
        const TokenTile tokens = token_tile(args, frame, cut, task / cut.head_tiles);
        const HeadTile heads = head_tile(args, cut, task % cut.head_tiles);
        const Tile tile = make_tile(args, frame, worker, tokens, heads);
        const int64_t n = tile.queries() * heads.kv_heads;
        for_each_walk(tile, frame, tokens, [&](const Tile& part, const KeyWalk& walk) {
            for_each_block(
                part, heads.kv_heads, walk,
                [](const Tile& head, const KeyBlock& block, int64_t from, int64_t to) {
                    score(head, block, from, to);
                    for (int64_t i = from; i < to; ++i) {
                        if (head.query[i].visible == 0) continue;
                        F32 x[kScoreRegisters];
                        finish_scores(head, block, i, x);
                        head.query[i].total.max = max_of(head.query[i].total.max, x);
                    }
                },
                [] {});
        });
        for (int64_t i = 0; i < n; ++i) start_partial(tile, i, tile.query[i].total.max);
        for_each_walk(tile, frame, tokens, [&](const Tile& part, const KeyWalk& walk) {
            sum_keys(part, heads.kv_heads, walk, [&] { close_partials(tile, n, true); });
        });
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
