// Parts shared by RWKV-6, Peng et al. 2024, arXiv:2404.05892, and RWKV-7, Peng et al. 2025,
// arXiv:2503.14456. Both blocks of a layer, the time mix and the channel mix, combine a token with
// the previous one. The state of the time mix is one matrix per head.
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
// `n_shifts` is the number of blocks in a layer that combine tokens.
RwkvSizes read_rwkv_sizes(const Hparams& hparams, int width, int n_shifts = 2);
// A form with two mixers per layer, each applied to a LayerNorm of the residual stream, and with a
// norm after the embedding.
ModelForm rwkv_form(const Hparams& hparams, const Weights& weights);

// The states of a layer: the previous input of the time mix, the previous input of the channel mix,
// and the matrices of the time mix.
enum RwkvState : int { kTimeShift, kChannelShift, kTimeState };
RecurrentSpec rwkv_spec(const RwkvSizes& sizes);

// The previous token minus the token. [n, width] -> [n, width]
Value token_difference(Step& step, int layer, Value x, RwkvState kind);
// Applies a LayerNorm to each head. [n, h, d] -> [n, width]
Value normalize_heads(Step& step, Value y, const NormWeights& w);
// relu(Wk x)^2
Value squared_relu(Step& step, Value x, const Weight& key);

}  // namespace plait
