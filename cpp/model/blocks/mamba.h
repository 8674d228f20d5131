// The mixers of Mamba, Gu & Dao 2023, arXiv:2312.00752, and Mamba-2, Dao & Gu 2024,
// arXiv:2405.21060. Their states are the convolution's last inputs and the recurrence's h.
#pragma once

#include "graph/ops.h"
#include "memory/layout.h"
#include "model/blocks/norm.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Keys "ssm.*", which other recurrences share.
struct SsmSizes {
    int kernel = 0;  // taps of the convolution
    int inner = 0;   // channels
    int state = 0;   // of a channel
    int rank = 0;    // of dt; of Mamba-2: heads
    int groups = 1;  // of heads that share b and c
};
SsmSizes read_ssm_sizes(const Hparams& hparams);          // Mamba: groups is 1
SsmSizes read_grouped_ssm_sizes(const Hparams& hparams);  // Mamba-2: groups divide heads

struct MambaWeights {
    Weight in;                       // [2 inner, width]
    Weight conv, conv_bias;          // [inner, kernel], [inner]
    Weight x;                        // [rank + 2 state, inner]
    Weight dt_norm, b_norm, c_norm;  // [rank], [state], [state]
    bool normalizes = false;         // dt, b and c, also where there are no weights for it
    Weight dt, dt_bias;              // [inner, rank], [inner]
    Weight a, d;                     // [inner, state] negative, [inner]
    Weight out;                      // [width, inner]
};
MambaWeights read_mamba(const LayerWeights& w, const Hparams& hparams, int width,
                        const SsmSizes& sizes);
RecurrentSpec mamba_spec(const SsmSizes& sizes);

//   u, z = Win x;  u = silu(conv(u));  r, b, c = Wx u;  dt = softplus(Wdt r + bias)
//   Wout (silu(z) * scan(u, dt, a, b, c, d))
Value mamba(Step& step, int layer, int slot, Value x, const MambaWeights& w, const SsmSizes& sizes,
            const Norm& norm);

struct Mamba2Weights {
    Weight in;               // [2 inner + 2 groups state + heads, width]
    Weight conv, conv_bias;  // [inner + 2 groups state, kernel], its rows
    Weight dt_bias;          // [heads]
    Weight a, d;             // [heads], a negative
    Weight norm;             // [groups, inner / groups]; nothing where the mixer has none
    Weight out;              // [width, inner]
};
Mamba2Weights read_mamba2(const LayerWeights& w, int width, const SsmSizes& sizes);
RecurrentSpec mamba2_spec(const SsmSizes& sizes);

//   z, u, dt = Win x;  u, b, c = silu(conv(u));  dt = softplus(dt + bias)
//   Wout norm(silu(z) * scan(u, dt, a, b, c, d))
Value mamba2(Step& step, int layer, int slot, Value x, const Mamba2Weights& w,
             const SsmSizes& sizes, const Norm& norm);

}  // namespace plait
