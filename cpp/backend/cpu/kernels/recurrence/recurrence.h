// Arguments of the recurrent kernels, their states, and how they are cut into tasks.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

// Where recurrent layers find their sequences' tokens and states. Tasks cut the state, never the
// tokens: a task owns some channels of a sequence, takes them from the read row through the
// sequence's tokens in order, and leaves them in the write row. So the row that is read may be the
// one that is written, and a result does not depend on how a prompt was cut.
struct StateArgs {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [s] i32
    Ref token_begin;            // [s + 1] i32
    int64_t elements;           // of a row
};

// A sequence's tokens in the piece, and its state before and after them.
struct Passage {
    int64_t begin, end;  // tokens, at least one
    const float* from;
    float* to;  // may be `from`
};

PLAIT_INLINE Passage passage(const StateArgs& args, const Frame& frame, int64_t sequence) {
    const int32_t* begin = frame.at<const int32_t>(args.token_begin) + sequence;
    float* storage = frame.at<float>(args.storage);
    const int64_t read = frame.at<const int32_t>(args.read_rows)[sequence];
    const int64_t write = frame.at<const int32_t>(args.write_rows)[sequence];
    return {begin[0], begin[1], storage + read * args.elements, storage + write * args.elements};
}

// A task of a kernel that cuts `width` channels into chunks: the chunks of all sequences follow each
// other, so that what a chunk has of the weights is made ready once.
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

// States that are a matrix for each head, [heads, rows, columns], of which every token changes all.
// Columns never meet: a task is 32 columns of one head of one sequence, and what is summed is summed
// down the rows. In storage a head's columns lie in tiles, one after the other, each [rows, 32] (the
// last as wide as what is left), so that a task's part of the state is one stretch of memory.
struct TiledStates {
    StateArgs states;
    int64_t heads, rows, columns;
};

constexpr int64_t kTileColumns = 32;

struct TileTask {
    Passage tokens;
    int64_t head;
    int64_t first, n;   // columns
    const float* from;  // [rows, n], the state before the next token
    float* to;          // and after it
};

PLAIT_INLINE int64_t tiles_of_head(const TiledStates& args) {
    return (args.columns + kTileColumns - 1) / kTileColumns;
}
PLAIT_INLINE int64_t tiles(const TiledStates& args) { return args.heads * tiles_of_head(args); }

PLAIT_INLINE int64_t tile_tasks(const TiledStates& args, const Frame& frame) {
    return tiles(args) * frame.n_sequences;
}
PLAIT_INLINE TileTask tile_task(const TiledStates& args, const Frame& frame, int64_t sequence,
                                int64_t tile) {
    TileTask result;
    result.tokens = passage(args.states, frame, sequence);
    result.head = tile / tiles_of_head(args);
    result.first = tile % tiles_of_head(args) * kTileColumns;
    const int64_t left = args.columns - result.first;
    result.n = left < kTileColumns ? left : kTileColumns;
    const int64_t offset = (result.head * args.columns + result.first) * args.rows;
    result.from = result.tokens.from + offset;
    result.to = result.tokens.to + offset;
    return result;
}
// One sequence after the other: neighbouring tasks walk through memory.
PLAIT_INLINE TileTask tile_task(const TiledStates& args, const Frame& frame, int64_t task) {
    return tile_task(args, frame, task / tiles(args), task % tiles(args));
}

// Arguments of the selective scan. A state is [k, channels] in tiles of 32 channels: state_tiles.h.
struct SelectiveScanArgs {
    Ref x, dt, y;        // [n, channels]; y apart
    Ref a, d;            // [channels, k], [channels]
    Ref b, c;            // [n, k]
    TiledStates states;  // heads: 1, rows: k, columns: channels
};

// Arguments of Mamba-2's scan. A state is [heads, k, p] in tiles of 32 of p: state_tiles.h.
struct SsdScanArgs {
    Ref x, y;  // [n, heads, p]; apart
    Ref dt;    // [n, heads]
    Ref a, d;  // [heads]
    Ref b, c;  // [n, groups, k]; heads / groups heads share them
    int64_t groups;
    TiledStates states;  // rows: k, columns: p
};

// Arguments of the gated delta rule. A state is [heads, key_dim, value_dim] in tiles of 32 of
// value_dim: state_tiles.h.
struct DeltaRuleArgs {
    Ref q, k;     // [n, key_heads, key_dim]; heads / key_heads heads share them
    Ref v, y;     // [n, heads, value_dim]; apart
    Ref g, beta;  // [n, heads]
    int64_t key_heads;
    TiledStates states;  // rows: key_dim, columns: value_dim
};

// Arguments of RWKV-6's recurrence. A state is [heads, keys, values], both as many as a head is
// wide, in tiles of 32 values: state_tiles.h.
struct Wkv6Args {
    Ref r, k, v, w, y;   // [n, heads, dim]; y apart
    Ref u;               // [heads, dim]
    TiledStates states;  // rows, columns: dim
};

// Arguments of RWKV-7's recurrence. A state is [heads, keys, values], the transpose of the paper's,
// both as many as a head is wide, in tiles of 32 values: state_tiles.h.
struct Wkv7Args {
    Ref r, w, k, v, a, b, y;  // [n, heads, dim]; y apart
    TiledStates states;       // rows, columns: dim
};

// Arguments of the short causal convolution of a recurrent layer. A state is the last `taps` - 1
// inputs, [taps - 1, channels], the oldest first.
struct ShortConvArgs {
    Ref x, y;    // [n, channels]; apart
    Ref weight;  // [channels, taps]
    Ref bias;    // [channels]
    uint8_t has_bias;
    int64_t channels;
    int64_t taps;
    StateArgs states;
};

constexpr int64_t kConvChunk = 256;  // channels of a task

// Arguments of the kernel that hands each token its predecessor. A state is the last row, [width].
struct TokenShiftArgs {
    Ref x, y;  // [n, width]; apart
    int64_t width;
    StateArgs states;
};

constexpr int64_t kShiftChunk = 1024;  // channels of a task

}  // namespace plait::cpu
