// What RWKV-6, Peng et al. 2024, arXiv:2404.05892, and RWKV-7, Peng et al. 2025, arXiv:2503.14456,
// have in common: each block mixes a token with the one before it; the time mix remembers a matrix
// for each head, whose output has a norm of its own.
#pragma once

#include "graph/ops.h"
#include "memory/layout.h"
#include "model/blocks/norm.h"
#include "model/form.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

struct RwkvSizes {
    int heads = 0;
    int head_dim = 0;
};
RwkvSizes read_rwkv_sizes(const Hparams& hparams, int width);
// Two mixers per layer, each on a LayerNorm of the stream, and a norm of the embedding.
ModelForm rwkv_form(const Hparams& hparams, const Weights& weights);

// Kinds of state of a layer: the token before, as the time mix and as the channel mix saw it, and
// the matrices.
enum RwkvState : int { kTimeShift, kChannelShift, kTimeState };
RecurrentSpec rwkv_spec(const RwkvSizes& sizes);

// The token before minus the token. [n, width] -> [n, width]
Value token_difference(Step& step, int layer, Value x, RwkvState kind);
// The norm of each head by itself. [n, h, d] -> [n, width]
Value normalize_heads(Step& step, Value y, const NormWeights& w);
// relu(Wk x)^2
Value squared_relu(Step& step, Value x, const Weight& key);

}  // namespace plait
