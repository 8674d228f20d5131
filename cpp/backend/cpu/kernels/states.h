// Where recurrent layers find their sequences' tokens and states. Tasks cut the state, never the
// tokens: a task owns some channels of a sequence, takes them from the read row through the
// sequence's tokens in order, and leaves them in the write row. So the row that is read may be the
// one that is written, and a result does not depend on how a prompt was cut.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

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

}  // namespace plait::cpu
