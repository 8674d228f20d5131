// The short causal convolution, and RWKV's token shift.
#include <string.h>

#include "backend/cpu/kernels/recurrence/state_rows.h"

namespace plait::cpu::PLAIT_ISA {

// y_t = sum_j weight[:, j] x_(t-taps+1+j) + bias, channel by channel. Inputs before the microbatch
// are in the state.  Mamba, arXiv:2312.00752, section 3.4.  Reference:
// tests/reference/short_conv.py.

namespace {

struct Convolution {
    const ShortConvArgs& args;
    const SequenceSpan& tokens;
    const float* x;       // the chunk's channels of token 0
    const float* weight;  // [taps, kConvChunk]
    const float* bias;    // may be null
    float* y;
    int64_t first;  // first channel of the chunk

    // The chunk's inputs `age` tokens before token t.
    PLAIT_INLINE_MEMBER const float* input(int64_t t, int64_t age) const {
        if (t - age >= tokens.begin) return x + (t - age) * args.channels;
        return tokens.from + (args.taps - 1 + t - age - tokens.begin) * args.channels + first;
    }

    // Channels i to i + n of token t, in kRegisters registers.
    template <int kRegisters, typename... Count>
    PLAIT_INLINE_MEMBER void at(int64_t t, int64_t i, Count... n) const {
        F32 sum[kRegisters];
        for (int r = 0; r < kRegisters; ++r)
            sum[r] = bias ? F32::load(bias + i + r * F32::kLanes, n...) : F32::zero();
        for (int64_t j = 0; j < args.taps; ++j) {
            const float* in = input(t, args.taps - 1 - j) + i;
            const float* w = weight + j * kConvChunk + i;
            for (int r = 0; r < kRegisters; ++r)
                sum[r] = fma(F32::load(w + r * F32::kLanes, n...),
                             F32::load(in + r * F32::kLanes, n...), sum[r]);
        }
        for (int r = 0; r < kRegisters; ++r)
            sum[r].store(y + t * args.channels + i + r * F32::kLanes, n...);
    }
};

// Stores the last taps - 1 inputs as the new state; inputs of the old state move up, oldest first.
void store_state(const Convolution& conv, int64_t n) {
    const int64_t taps = conv.args.taps;
    for (int64_t j = 0; j < taps - 1; ++j) {
        float* to = conv.tokens.to + j * conv.args.channels + conv.first;
        const float* from = conv.input(conv.tokens.end - 1, taps - 2 - j);
        if (to != from) memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    }
}

}  // namespace

int64_t short_conv_tasks(const ShortConvArgs& args, const Frame& frame) {
    return chunk_tasks(args.channels, kConvChunk, frame);
}

// Scratch: taps * kConvChunk floats.
void short_conv(const ShortConvArgs& args, const Frame& frame, const Worker& worker, int64_t begin,
                int64_t end) {
    float* weight = reinterpret_cast<float*>(worker.scratch);
    int64_t prepared = -1;
    for (int64_t task = begin; task < end; ++task) {
        const ChunkTask chunk = chunk_task(args.channels, kConvChunk, frame, task);
        if (prepared != chunk.first)
            transpose_channels(frame.at<const float>(args.weight) + chunk.first * args.taps,
                               chunk.n, args.taps, 1.0f, weight, kConvChunk);
        prepared = chunk.first;
        const SequenceSpan tokens = sequence_span(args.states, frame, chunk.sequence);
        const Convolution conv{
            args,
            tokens,
            frame.at<const float>(args.x) + chunk.first,
            weight,
            args.has_bias ? frame.at<const float>(args.bias) + chunk.first : nullptr,
            frame.at<float>(args.y) + chunk.first,
            chunk.first};
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            int64_t i = 0;
            for (; i + 4 * F32::kLanes <= chunk.n; i += 4 * F32::kLanes) conv.at<4>(t, i);
            for (; i + F32::kLanes <= chunk.n; i += F32::kLanes) conv.at<1>(t, i);
            if (i < chunk.n) conv.at<1>(t, i, chunk.n - i);
        }
        store_state(conv, chunk.n);
    }
}

// y_t = x_(t-1).  RWKV, arXiv:2305.13048.  Reference: tests/reference/token_shift.py.
int64_t token_shift_tasks(const TokenShiftArgs& args, const Frame& frame) {
    return chunk_tasks(args.width, kShiftChunk, frame);
}

void token_shift(const TokenShiftArgs& args, const Frame& frame, const Worker&, int64_t begin,
                 int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
        const ChunkTask chunk = chunk_task(args.width, kShiftChunk, frame, task);
        const SequenceSpan tokens = sequence_span(args.states, frame, chunk.sequence);
        const float* x = frame.at<const float>(args.x) + chunk.first;
        float* y = frame.at<float>(args.y) + chunk.first;
        const size_t bytes = static_cast<size_t>(chunk.n) * sizeof(float);
        const float* before = tokens.from + chunk.first;
        for (int64_t t = tokens.begin; t < tokens.end; ++t) {
            memcpy(y + t * args.width, before, bytes);
            before = x + t * args.width;
        }
        memcpy(tokens.to + chunk.first, before, bytes);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
