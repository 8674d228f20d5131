// The mixers of Mamba, Gu & Dao 2023, arXiv:2312.00752, and Mamba-2, Dao & Gu 2024,
// arXiv:2405.21060. Their states are the most recent inputs of the convolution and the state h of
// the scan.
#pragma once

#include "graph/ops.h"
#include "memory/layout.h"
#include "model/blocks/norm.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// The ssm.* keys, which other recurrences use too.
struct SsmSizes {
    int kernel = 0;  // taps of the convolution
    int inner = 0;   // channels
    int state = 0;   // elements of state per channel
    int rank = 0;    // rank of dt; in Mamba-2 the number of heads
    int groups = 1;  // groups of heads; the heads of a group share b and c
};
SsmSizes read_ssm_sizes(const Hparams& hparams);          // Mamba: groups is 1
SsmSizes read_headed_ssm_sizes(const Hparams& hparams);   // Mamba-2: heads divide inner
SsmSizes read_grouped_ssm_sizes(const Hparams& hparams);  // Mamba-2: groups divide heads

//   u, z = Win x;  u = silu(conv(u));  r, b, c = Wx u;  dt = softplus(Wdt r + bias)
//   Wout (silu(z) * scan(u, dt, a, b, c, d))
class MambaMixer {
public:
    MambaMixer(const Hparams& hparams, const LayerWeights& w, int width);
    RecurrentSpec spec() const;
    Value operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const;

private:
    SsmSizes sizes_;
    Weight in_;                         // [2 inner, width]
    Weight conv_, conv_bias_;           // [inner, kernel], [inner]
    Weight x_;                          // [rank + 2 state, inner]
    Weight dt_norm_, b_norm_, c_norm_;  // [rank], [state], [state]
    bool normalizes_ = false;           // normalises dt, b and c, with weights if the file has them
    Weight dt_, dt_bias_;               // [inner, rank], [inner]
    Weight a_, d_;                      // [inner, state] negative, [inner]
    Weight out_;                        // [width, inner]
};

//   z, u, dt = Win x;  u, b, c = silu(conv(u));  dt = softplus(dt + bias)
//   Wout n(silu(z) * scan(u, dt, a, b, c, d))
class Mamba2Mixer {
public:
    Mamba2Mixer(const Hparams& hparams, const LayerWeights& w, int width);
    RecurrentSpec spec() const;
    Value operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const;

private:
    SsmSizes sizes_;
    Weight in_;                // [2 inner + 2 groups state + heads, width]
    Weight conv_, conv_bias_;  // [inner + 2 groups state, kernel], [inner + 2 groups state]
    Weight dt_bias_;           // [heads]
    Weight a_, d_;             // [heads], a negative
    Weight norm_;              // [groups, inner / groups]; optional
    Weight out_;               // [width, inner]
};

}  // namespace plait
