// Parts shared by RWKV-6, Peng et al. 2024, arXiv:2404.05892, and RWKV-7, Peng et al. 2025,
// arXiv:2503.14456. Both blocks mix a token with the previous one; the state of the time mix is one
// matrix per head.
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

// The states of a layer: the previous input of the time mix, that of the channel mix, and the
// matrices.
enum RwkvState : int { kTimeShift, kChannelShift, kTimeState };
RecurrentSpec rwkv_spec(const RwkvSizes& sizes);

// The previous token minus the token. [n, width] -> [n, width]
Value token_difference(Step& step, int layer, Value x, RwkvState kind);
// LayerNorm of each head. [n, h, d] -> [n, width]
Value normalize_heads(Step& step, Value y, const NormWeights& w);
// relu(Wk x)^2
Value squared_relu(Step& step, Value x, const Weight& key);

}  // namespace plait
