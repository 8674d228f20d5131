// The mixer of gated delta nets, Yang et al. 2024, arXiv:2412.06464, as Qwen3-Next has it. Its states
// are the convolution's last inputs and a matrix for each head.
#pragma once

#include "graph/ops.h"
#include "memory/layout.h"
#include "model/blocks/norm.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

struct DeltaNetSizes {
    int kernel = 0;  // taps of the convolution
    int key_heads = 0;
    int heads = 0;    // of values; key_heads of them share q and k
    int key_dim = 0;  // of a head
    int value_dim = 0;
    int64_t keys() const { return int64_t{key_heads} * key_dim; }
    int64_t values() const { return int64_t{heads} * value_dim; }
};
DeltaNetSizes read_delta_net_sizes(const Hparams& hparams);
RecurrentSpec delta_net_spec(const DeltaNetSizes& sizes);

struct DeltaNetWeights {
    Weight qkv, z;      // [2 keys + values, width], [values, width]
    Weight qkvz;        // both, key head by key head, in place of them
    Weight ba;          // [2 heads, width], key head by key head
    Weight conv;        // [2 keys + values, kernel]
    Weight dt_bias, a;  // [heads], a negative
    Weight norm;        // [value_dim]
    Weight out;         // [width, values]
};
DeltaNetWeights read_delta_net(const LayerWeights& w, int width, const DeltaNetSizes& sizes);

//   q, k, v = silu(conv(Wqkv x)), q and k of unit length;  b, t = Wba x
//   Wout (n(delta(q / sqrt(key_dim), k, v, a softplus(t + bias), sigmoid(b))) * silu(Wz x))
Value delta_net(Step& step, int layer, int slot, Value x, const DeltaNetWeights& w,
                const DeltaNetSizes& sizes, const Norm& norm);

}  // namespace plait
