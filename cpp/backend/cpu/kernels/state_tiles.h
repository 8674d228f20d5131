// States that are a matrix for each head, [heads, rows, columns], of which every token changes all.
// Columns never meet: a task is 32 columns of one head of one sequence, and what is summed is summed
// down the rows. In storage a head's columns lie in tiles, one after the other, each [rows, 32] (the
// last as wide as what is left), so that a task's part of the state is one stretch of memory.
#pragma once

#include "backend/cpu/kernels/states.h"

namespace plait::cpu {

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

}  // namespace plait::cpu
