// What both attention kernels do: cut the step into tiles, and walk a tile's keys.
#pragma once

#include "backend/cpu/kernels/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {

// Tiles that the heads of a token make.
PLAIT_INLINE int64_t head_tiles(const AttendArgs& args) {
    const int32_t group = args.heads / args.kv_heads;
    return static_cast<int64_t>(args.kv_heads) * ((group + args.tile_heads - 1) / args.tile_heads);
}

// A task is a tile, heads first.
static inline int64_t count_attend_tasks(const AttendArgs& args, const Frame& frame) {
    const int32_t* begin = frame.at<const int32_t>(args.token_begin);
    int64_t tiles = 0;
    for (int32_t s = 0; s < frame.n_sequences; ++s)
        tiles += (begin[s + 1] - begin[s] + args.tile_tokens - 1) / args.tile_tokens;
    return tiles * head_tiles(args);
}

// Asks memory for the block's rows, whose pattern no processor guesses: into the second cache, as
// rows a power of two apart would push each other out of the first.
PLAIT_INLINE void prefetch(const Tile& tile, const KeyBlock& block) {
    constexpr int64_t kLineBytes = 64;
    const CacheLayout& k = tile.args.key_cache;
    const CacheLayout& v = tile.args.value_cache;
    for (int32_t e = 0; e < block.count; ++e)
        for (int64_t i = 0; i < k.head_bytes; i += kLineBytes)
            __builtin_prefetch(tile.keys + block.row[e] * k.row_bytes + i, 0, 2);
    if (tile.args.values_in_keys) return;
    for (int32_t e = 0; e < block.count; ++e)
        for (int64_t i = 0; i < v.head_bytes; i += kLineBytes)
            __builtin_prefetch(tile.values + block.row[e] * v.row_bytes + i, 0, 2);
}

// Calls step(block) for every block that holds keys of the tile, `visible` of its queries set, and
// split() where sums are closed.
template <typename Step, typename Split>
PLAIT_INLINE void for_each_block(const Tile& tile, KeyWalk walk, Step step, Split split) {
    KeyBlock blocks[3];  // the one before, this one, the one that is fetched meanwhile
    int now = 0;
    bool more = walk.next(blocks[0]);
    for (bool first = true; more; first = false) {
        const KeyBlock& block = blocks[now];
        if (!first && block.starts_split(blocks[(now + 2) % 3])) split();
        now = (now + 1) % 3;
        more = walk.next(blocks[now]);
        if (more) prefetch(tile, blocks[now]);
        int64_t begin = tile.queries, end = 0;  // queries that see some of it
        for (int64_t i = 0; i < tile.queries; ++i) {
            QueryState& state = tile.state[i];
            state.visible = block.visible(state.first, state.last);
            if (state.visible == 0) continue;
            begin = begin < i ? begin : i;
            end = i + 1;
        }
        if (begin < end) step(block, begin, end);
    }
}

// What the queries of heads [head, head + heads) know of positions.
static inline void set_biases(const Tile& tile, const Frame& frame, float* lists, int64_t token,
                              int64_t head, int64_t heads) {
    const AttendArgs& args = tile.args;
    if (args.bias_kind == kNoBias) return;
    const int32_t* positions = frame.at<const int32_t>(args.positions);
    if (args.bias_kind == kBuckets)
        for (int64_t i = 0; i < heads; ++i)
            list_biases(args, frame.at<const float>(args.bias) + head + i,
                        lists + i * bias_row(args));
    for (int64_t i = 0; i < tile.queries; ++i) {
        QueryState& state = tile.state[i];
        state.position = positions[(token + i / heads) * args.position_stride];
        if (args.bias_kind == kAlibi)
            state.slope = i < heads ? alibi_slope(args.max_bias, head + i, args.heads)
                                    : tile.state[i - heads].slope;
        else
            state.biases = lists + i % heads * bias_row(args) + args.max_distance;
    }
}

// Calls attend(tile, walk) for each of the tasks and writes the results.
template <typename Attend>
PLAIT_INLINE void for_each_tile(const AttendArgs& args, const Frame& frame, const Worker& worker,
                                int64_t begin_task, int64_t end_task, Attend attend) {
    const int32_t* token_begin = frame.at<const int32_t>(args.token_begin);
    const int32_t* run_begin = frame.at<const int32_t>(args.run_begin);
    const KeyRun* runs = frame.at<const KeyRun>(args.runs);
    const int32_t* first = frame.at<const int32_t>(args.first);
    const int32_t* last = frame.at<const int32_t>(args.last);
    const float* sinks = args.has_sinks ? frame.at<const float>(args.sinks) : nullptr;
    const int32_t group = args.heads / args.kv_heads;
    const int64_t parts = head_tiles(args) / args.kv_heads;  // of a group
    const AttendScratch at = attend_scratch(args);
    float* scratch = reinterpret_cast<float*>(worker.scratch);

    for (int64_t task = begin_task; task < end_task; ++task) {
        const int64_t kv_head = task / parts % args.kv_heads;
        const int64_t head = kv_head * group + task % parts * args.tile_heads;
        const int64_t heads_left = (kv_head + 1) * group - head;
        const int64_t heads = heads_left < args.tile_heads ? heads_left : args.tile_heads;
        int64_t index = task / parts / args.kv_heads;  // of the tile, among those of sequence s
        int32_t s = 0;
        for (;; ++s) {
            const int64_t tiles =
                (token_begin[s + 1] - token_begin[s] + args.tile_tokens - 1) / args.tile_tokens;
            if (index < tiles) break;
            index -= tiles;
        }
        const int64_t token = token_begin[s] + index * args.tile_tokens;
        const int64_t left = token_begin[s + 1] - token;
        const int64_t tokens = left < args.tile_tokens ? left : args.tile_tokens;

        const Tile tile{
            args,
            frame.at<const unsigned char>(args.keys) + kv_head * args.key_cache.head_bytes,
            frame.at<const unsigned char>(args.values) + kv_head * args.value_cache.head_bytes,
            tokens * heads,
            at.value_width,
            args.bias_kind == kNoBias ? nullptr
                                      : frame.at<const int32_t>(args.key_positions) +
                                            frame.at<const int32_t>(args.key_begin)[s],
            scratch + at.rows,
            scratch + at.positions,
            scratch + at.scores,
            scratch + at.partial,
            scratch + at.total,
            reinterpret_cast<QueryState*>(scratch + at.state),
        };
        KeyWalk walk{runs + run_begin[s], runs + run_begin[s + 1], INT32_MAX, INT32_MIN};
        for (int64_t i = 0; i < tile.queries; ++i) {
            const int64_t t = token + i / heads;
            QueryState& state = tile.state[i];
            state = {};
            state.q =
                frame.at<const float>(args.q) + (t * args.heads + head + i % heads) * args.key_dim;
            state.first = first[t];
            state.last = last[t];
            state.total = {kMinusInfinity, 0.0f, false};
            start_partial(tile, i, kMinusInfinity);
            if (first[t] >= last[t]) continue;
            walk.first = walk.first < first[t] ? walk.first : first[t];
            walk.last = walk.last > last[t] ? walk.last : last[t];
        }
        memset(tile.total, 0, static_cast<size_t>(tile.queries * tile.value_width) * sizeof(float));
        set_biases(tile, frame, scratch + at.biases, token, head, heads);
        if (walk.first < walk.last) attend(tile, walk);

        for (int64_t i = 0; i < tile.queries; ++i) {
            const int64_t h = head + i % heads;
            const int64_t row = (token + i / heads) * args.heads + h;
            write_query(tile, i, sinks ? sinks + h : nullptr,
                        frame.at<float>(args.y) + row * args.value_dim);
        }
    }
}

// Sums over all keys of the walk. Where the maxima are known, every factor is one.
PLAIT_INLINE void sum_keys(const Tile& tile, const KeyWalk& walk, bool maxima_known) {
    for_each_block(
        tile, walk,
        [&](const KeyBlock& block, int64_t begin, int64_t end) {
            score(tile, block, begin, end);
            for (int64_t i = begin; i < end; ++i)
                if (tile.state[i].visible != 0) softmax_step(tile, block, i);
            add_values(tile, block, begin, end);
        },
        [&] { close_partials(tile, maxima_known); });
    close_partials(tile, maxima_known);
}

}  // namespace plait::cpu::PLAIT_ISA
