// How attention is cut into tasks: tiles of queries and, if those are too few for all threads,
// splits of their keys. Successive sequences whose first keys are in the same rows, such as forks
// of one prefix, are computed in one tile, so that these rows are read once. The cut never changes
// a result.
#pragma once

#include "backend/cpu/kernels/attention/key_blocks.h"

namespace plait::cpu {

// Enough that other threads can take tasks from one that falls behind.
constexpr int64_t kTasksPerThread = 4;
// The same for tiles of several sequences: smaller tiles would read shared rows more often.
constexpr int64_t kSharedTasksPerThread = 2;
// With more runs, finding a task's split would take too long.
constexpr int64_t kMaxSplitRuns = 1024;

struct AttendCut {
    // Max tokens, kv heads, and query heads per kv head of a tile. A tile with several kv heads has
    // all of their query heads.
    int64_t tokens, kv_heads, heads;
    int64_t token_tiles, head_tiles;
    bool shares;     // a tile may have tokens of several sequences
    int64_t splits;  // of all token tiles; 0: tiles are not split
    int64_t tasks;
};

// Tokens [begin, begin + count) of one or more successive sequences. The walk is over all keys that
// any of them sees or, with several sequences, over the keys that these share.
struct TokenTile {
    int32_t sequence, sequences;  // the first one, and their number
    int64_t begin, count;
    KeyWalk walk;
};

PLAIT_INLINE int64_t divide_up(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Returns the walk over all keys of sequence s that any of the tokens begin <= t < end sees.
static inline KeyWalk walk_of(const AttendArgs& args, const Frame& frame, int32_t s, int64_t begin,
                              int64_t end) {
    const int32_t* run_begin = frame.at<const int32_t>(args.run_begin);
    const int32_t* first = frame.at<const int32_t>(args.first);
    const int32_t* last = frame.at<const int32_t>(args.last);
    const KeyRun* runs = frame.at<const KeyRun>(args.runs);
    KeyWalk walk{runs + run_begin[s], runs + run_begin[s + 1], INT32_MAX, INT32_MIN};
    for (int64_t t = begin; t < end; ++t) {
        if (first[t] >= last[t]) continue;
        if (walk.first > first[t]) walk.first = first[t];
        if (walk.last < last[t]) walk.last = last[t];
    }
    if (walk.first >= walk.last) walk.run = walk.end;
    return walk;
}

// The walk over all keys that the tokens of sequence s see.
PLAIT_INLINE KeyWalk walk_of(const AttendArgs& args, const Frame& frame, int32_t s) {
    const int32_t* token_begin = frame.at<const int32_t>(args.token_begin);
    return walk_of(args, frame, s, token_begin[s], token_begin[s + 1]);
}

// Finds the sequences after sequence s that can share a tile of up to `tokens` tokens with it: at
// least half of the keys of each are the same, in the same rows, and these end with a split. Returns
// their number including s, and sets `walk` to that of the shared splits if there are several.
static inline int32_t sharing_sequences(const AttendArgs& args, const Frame& frame, int64_t tokens,
                                        int32_t s, KeyWalk& walk) {
    const int32_t* token_begin = frame.at<const int32_t>(args.token_begin);
    const KeyWalk all = walk = walk_of(args, frame, s);
    int32_t end = s + 1;
    for (; end < frame.n_sequences && token_begin[end + 1] - token_begin[s] <= tokens; ++end) {
        const KeyWalk other = walk_of(args, frame, end);
        const int32_t shared = shared_splits(walk, other);
        const auto is_half = [&](const KeyWalk& of) {
            return shared - of.first >= of.last - shared;
        };
        if (shared == walk.first || !is_half(all) || !is_half(other)) break;
        if (end > s + 1 && shared < walk.last) break;
        walk.last = shared;
    }
    return end - s;
}

static inline TokenTile token_tile(const AttendArgs& args, const Frame& frame, const AttendCut& cut,
                                   int64_t index) {
    const int32_t* token_begin = frame.at<const int32_t>(args.token_begin);
    int32_t s = 0, n = 1;
    for (;; s += n) {
        KeyWalk walk{};
        n = cut.shares ? sharing_sequences(args, frame, cut.tokens, s, walk) : 1;
        if (n > 1 && index == 0)
            return {s, n, token_begin[s], token_begin[s + n] - token_begin[s], walk};
        const int64_t tiles =
            n > 1 ? 1 : divide_up(token_begin[s + 1] - token_begin[s], cut.tokens);
        if (index < tiles) break;
        index -= tiles;
    }
    const int64_t begin = token_begin[s] + index * cut.tokens;
    const int64_t left = token_begin[s + 1] - begin;
    const int64_t count = left < cut.tokens ? left : cut.tokens;
    return {s, 1, begin, count, walk_of(args, frame, s, begin, begin + count)};
}

PLAIT_INLINE int64_t count_splits(KeyWalk walk) {
    int64_t n = 0;
    for (KeyWalk split = walk; next_split(walk, split);) ++n;
    return n;
}

PLAIT_INLINE int64_t tile_queries(const AttendCut& cut) {
    return cut.tokens * cut.kv_heads * cut.heads;
}

// Sets the counts of tiles and tasks from the tile's size.
static inline void count_tasks(const AttendArgs& args, const Frame& frame, AttendCut& cut) {
    const int32_t* begin = frame.at<const int32_t>(args.token_begin);
    cut.token_tiles = 0;
    for (int32_t s = 0, n = 1; s < frame.n_sequences; s += n) {
        KeyWalk walk{};
        n = cut.shares ? sharing_sequences(args, frame, cut.tokens, s, walk) : 1;
        cut.token_tiles += n > 1 ? 1 : divide_up(begin[s + 1] - begin[s], cut.tokens);
    }
    cut.head_tiles =
        divide_up(args.kv_heads, cut.kv_heads) * divide_up(args.heads / args.kv_heads, cut.heads);
    cut.tasks = (cut.splits > 0 ? cut.splits : cut.token_tiles) * cut.head_tiles;
}

PLAIT_INLINE bool sums_fit(const AttendArgs& args, const AttendCut& cut) {
    return cut.tasks * split_floats(tile_queries(cut), args.value_dim) <= args.splits_floats;
}

static inline void cut_by_split(const AttendArgs& args, const Frame& frame, AttendCut& cut) {
    if (frame.at<const int32_t>(args.run_begin)[frame.n_sequences] > kMaxSplitRuns) return;
    AttendCut by_split = cut;
    for (int64_t i = 0; i < cut.token_tiles; ++i)
        by_split.splits += count_splits(token_tile(args, frame, cut, i).walk);
    by_split.tasks = by_split.splits * cut.head_tiles;
    if (by_split.splits > cut.token_tiles && sums_fit(args, by_split)) cut = by_split;
}

// Halves the tiles. Returns false if they are too small to halve.
static inline bool halve(AttendCut& cut) {
    constexpr int64_t kFewQueries = 8;
    int64_t& size = cut.kv_heads > 1         ? cut.kv_heads
                    : cut.heads > cut.tokens ? cut.heads
                                             : cut.tokens;
    if (cut.kv_heads == 1 && cut.heads * cut.tokens <= kFewQueries) return false;
    size = divide_up(size, 2);
    return true;
}

// Returns the largest tiles of up to `max_tokens` tokens and as many heads as fit.
static inline AttendCut largest_tiles(const AttendArgs& args, int64_t max_tokens) {
    const int64_t group = args.heads / args.kv_heads;
    AttendCut cut{};
    cut.heads = group < args.tile_queries ? group : args.tile_queries;
    cut.tokens = args.tile_queries / cut.heads;
    if (cut.tokens > max_tokens) cut.tokens = max_tokens;
    cut.kv_heads = cut.heads < group ? 1 : args.tile_queries / (cut.heads * cut.tokens);
    if (cut.kv_heads > args.kv_heads) cut.kv_heads = args.kv_heads;
    return cut;
}

// Cuts sequences that share keys into common tiles. Returns false if there are none, or too few for
// all threads.
static inline bool cut_shared(const AttendArgs& args, const Frame& frame, AttendCut& cut) {
    KeyWalk walk{};
    int32_t s = 0;
    while (s + 1 < frame.n_sequences &&
           sharing_sequences(args, frame, args.tile_queries, s, walk) < 2)
        ++s;
    if (s + 1 >= frame.n_sequences) return false;

    AttendCut shared = largest_tiles(args, frame.n_tokens);
    // Tiles of equal size: 8 and 8 of 16 tokens, if 9 would fit.
    shared.tokens = divide_up(frame.n_tokens, divide_up(frame.n_tokens, shared.tokens));
    shared.shares = true;
    count_tasks(args, frame, shared);
    const int64_t wanted = args.threads == 1 ? 1 : args.threads * kSharedTasksPerThread;
    while (shared.tasks < wanted) {
        if (!halve(shared) || shared.tokens < 2) return false;
        count_tasks(args, frame, shared);
    }
    cut = shared;
    return true;
}

static inline AttendCut cut_attention(const AttendArgs& args, const Frame& frame) {
    const int32_t* begin = frame.at<const int32_t>(args.token_begin);
    int64_t max_tokens = 1;  // of a sequence
    for (int32_t s = 0; s < frame.n_sequences; ++s)
        if (begin[s + 1] - begin[s] > max_tokens) max_tokens = begin[s + 1] - begin[s];
    AttendCut cut = largest_tiles(args, max_tokens);
    if (cut_shared(args, frame, cut)) return cut;
    count_tasks(args, frame, cut);

    const int64_t wanted = args.threads == 1 ? 1 : args.threads * kTasksPerThread;
    if (cut.tasks < wanted && args.splits_floats > 0) cut_by_split(args, frame, cut);
    while (cut.tasks < wanted) {
        AttendCut smaller = cut;
        if (!halve(smaller)) break;
        count_tasks(args, frame, smaller);
        if (cut.splits > 0 && (smaller.tokens != cut.tokens || !sums_fit(args, smaller))) break;
        cut = smaller;
    }
    return cut;
}

// A split, and the token tile that it belongs to.
struct SplitPlace {
    TokenTile tokens;
    KeyWalk keys;
};

// Finds a split by its index among those of all token tiles.
static inline SplitPlace find_split(const AttendArgs& args, const Frame& frame,
                                    const AttendCut& cut, int64_t index) {
    for (int64_t i = 0;; ++i) {
        const TokenTile tokens = token_tile(args, frame, cut, i);
        KeyWalk rest = tokens.walk;
        for (KeyWalk split = rest; next_split(rest, split); --index)
            if (index == 0) return {tokens, split};
    }
}

// The results of a split's task, stored until the merge.
struct SplitSums {
    float* values;        // [queries, width]
    SoftmaxSum* softmax;  // [queries]
};

PLAIT_INLINE SplitSums split_sums(const AttendArgs& args, const Frame& frame, const AttendCut& cut,
                                  int64_t task) {
    const int64_t queries = tile_queries(cut);
    float* values = frame.at<float>(args.splits) + task * split_floats(queries, args.value_dim);
    const int64_t width = whole_registers(args.value_dim);
    return {values, reinterpret_cast<SoftmaxSum*>(values + queries * width)};
}

}  // namespace plait::cpu
