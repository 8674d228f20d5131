// Arguments of the recurrent kernels, the layout of their states, and how states are cut into
// tasks.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

// The tokens and states of sequences. Tasks divide a state, never the tokens: a task owns some
// channels of one sequence, updates them from the read row through the sequence's tokens in order,
// and stores them in the write row. So the two rows may be the same, and a result does not depend
// on how a prompt was divided into microbatches.
struct StateArgs {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    int64_t elements;           // of a row
};

// A sequence's tokens in the microbatch, and its state before and after them.
struct SequenceSpan {
    int64_t begin, end;  // tokens, at least one
    const float* from;
    float* to;  // may be the same as `from`
};

PLAIT_INLINE SequenceSpan sequence_span(const StateArgs& args, const Frame& frame,
                                        int64_t sequence) {
    const int32_t* begin = frame.at<const int32_t>(args.token_begin) + sequence;
    float* storage = frame.at<float>(args.storage);
    const int64_t read = frame.at<const int32_t>(args.read_rows)[sequence];
    const int64_t write = frame.at<const int32_t>(args.write_rows)[sequence];
    return {begin[0], begin[1], storage + read * args.elements, storage + write * args.elements};
}

// A task of a kernel that divides `width` channels into chunks. The tasks of one chunk, for all
// sequences, follow each other, so that its weights are prepared once.
struct ChunkTask {
    int64_t sequence;
    int64_t first, n;  // channels
};

PLAIT_INLINE int64_t chunk_tasks(int64_t width, int64_t chunk, const Frame& frame) {
    return (width + chunk - 1) / chunk * frame.n_sequences;
}
PLAIT_INLINE ChunkTask chunk_task(int64_t width, int64_t chunk, const Frame& frame, int64_t task) {
    const int64_t first = task / frame.n_sequences * chunk;
    return {task % frame.n_sequences, first, width - first < chunk ? width - first : chunk};
}

// States that are a matrix for each head, [heads, rows, columns], which every token updates as a
// whole. Columns are independent: a task is 32 columns of one head of one sequence, and sums run
// over the rows. A head is stored in tiles of 32 columns, each [rows, 32] (the last one as wide as
// the remainder), so that a task's part of the state is contiguous.
struct TiledStates {
    StateArgs states;
    int64_t heads, rows, columns;
};

constexpr int64_t kTileColumns = 32;

struct TileTask {
    SequenceSpan tokens;
    int64_t head;
    int64_t first, n;   // columns
    const float* from;  // [rows, n], the state before the sequence's tokens
    float* to;          // and after them
};

PLAIT_INLINE int64_t tiles_of_head(const TiledStates& args) {
    return (args.columns + kTileColumns - 1) / kTileColumns;
}
PLAIT_INLINE int64_t count_tiles(const TiledStates& args) {
    return args.heads * tiles_of_head(args);
}

PLAIT_INLINE int64_t tile_tasks(const TiledStates& args, const Frame& frame) {
    return count_tiles(args) * frame.n_sequences;
}
PLAIT_INLINE TileTask tile_task(const TiledStates& args, const Frame& frame, int64_t sequence,
                                int64_t tile) {
    TileTask result;
    result.tokens = sequence_span(args.states, frame, sequence);
    result.head = tile / tiles_of_head(args);
    result.first = tile % tiles_of_head(args) * kTileColumns;
    const int64_t left = args.columns - result.first;
    result.n = left < kTileColumns ? left : kTileColumns;
    const int64_t offset = (result.head * args.columns + result.first) * args.rows;
    result.from = result.tokens.from + offset;
    result.to = result.tokens.to + offset;
    return result;
}
// The tiles of one sequence follow each other: successive tasks read successive memory.
PLAIT_INLINE TileTask tile_task(const TiledStates& args, const Frame& frame, int64_t task) {
    return tile_task(args, frame, task / count_tiles(args), task % count_tiles(args));
}

// Mamba's selective scan. A state is [k, channels].
struct SelectiveScanArgs {
    Ref x, dt, y;        // [n, channels]; y must not overlap them
    Ref a, d;            // [channels, k], [channels]
    Ref b, c;            // [n, k]
    TiledStates states;  // heads: 1, rows: k, columns: channels
};

// Mamba-2's scan. A state is [heads, k, p].
struct SsdScanArgs {
    Ref x, y;  // [n, heads, p]; y must not overlap x
    Ref dt;    // [n, heads]
    Ref a, d;  // [heads]
    Ref b, c;  // [n, groups, k]; heads / groups heads share them
    int64_t groups;
    TiledStates states;  // rows: k, columns: p
};

// The gated delta rule. A state is [heads, key_dim, value_dim].
struct DeltaRuleArgs {
    Ref q, k;     // [n, key_heads, key_dim]; heads / key_heads heads share them
    Ref v, y;     // [n, heads, value_dim]; y must not overlap v
    Ref g, beta;  // [n, heads]
    int64_t key_heads;
    uint8_t tiled;       // head i uses key head i mod key_heads
    TiledStates states;  // rows: key_dim, columns: value_dim
};

// RWKV-6's recurrence. A state is [heads, keys, values] with dim keys and dim values.
struct Wkv6Args {
    Ref r, k, v, w, y;   // [n, heads, dim]; y must not overlap the others
    Ref u;               // [heads, dim]
    TiledStates states;  // rows, columns: dim
};

// RWKV-7's recurrence. A state is [heads, keys, values] with dim keys and dim values, which is the
// transpose of the paper's.
struct Wkv7Args {
    Ref r, w, k, v, a, b, y;  // [n, heads, dim]; y must not overlap the others
    TiledStates states;       // rows, columns: dim
};

// The short causal convolution of recurrent layers. A state is the last taps - 1 inputs,
// [taps - 1, channels], the oldest first.
struct ShortConvArgs {
    Ref x, y;    // [n, channels]; y must not overlap x
    Ref weight;  // [channels, taps]
    Ref bias;    // [channels]
    uint8_t has_bias;
    int64_t channels;
    int64_t taps;
    StateArgs states;
};

constexpr int64_t kConvChunk = 256;  // channels of a task

// RWKV's token shift: each token gets the row of its predecessor. A state is the last row, [width].
struct TokenShiftArgs {
    Ref x, y;  // [n, width]; y must not overlap x
    int64_t width;
    StateArgs states;
};

constexpr int64_t kShiftChunk = 1024;  // channels of a task

}  // namespace plait::cpu
