// The mixer of gated delta nets, Yang et al. 2024, arXiv:2412.06464, in the variants of Qwen3-Next
// and Qwen3.5. Its states are the most recent inputs of the convolution and one matrix per head.
#pragma once

#include <vector>

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
    int heads = 0;    // of values; heads / key_heads of them share q and k
    int key_dim = 0;  // of a head
    int value_dim = 0;
    int64_t keys() const { return int64_t{key_heads} * key_dim; }
    int64_t values() const { return int64_t{heads} * value_dim; }
};
// Returns which layers are recurrent. Reads attention.recurrent_layers; without it, all layers are
// recurrent except every full_attention_interval-th (by default every fourth).
std::vector<bool> read_recurrent_layers(const Hparams& hparams, int n_layers);

//   q, k, v = silu(conv(Wqkv x)), q and k of unit length;  b = Wb x, t = Wt x
//   Wout (n(delta(q / sqrt(key_dim), k, v, a softplus(t + bias), sigmoid(b))) * silu(Wz x))
class DeltaNetMixer {
public:
    DeltaNetMixer(const Hparams& hparams, const LayerWeights& w, int width);
    RecurrentSpec spec() const;
    Value operator()(Step& step, int layer, int slot, Value x, const Norm& norm) const;

private:
    struct Projected {
        Value qkv;  // [n, 2 keys + values]
        Value z;    // [n, values]
    };
    struct Rates {
        Value g, beta;  // [n, heads]
    };
    Projected project(Step& step, Value x) const;
    Rates rates(Step& step, Value x) const;
    Value unit(Value x, float length, float epsilon) const;

    DeltaNetSizes sizes_;
    Weight qkv_, z_;      // [2 keys + values, width], [values, width]
    Weight qkvz_;         // [2 keys + 2 values, width], by key head; replaces qkv_ and z_
    Weight ba_;           // [2 heads, width], by key head
    Weight b_, t_;        // [heads, width]; replace ba_; head i then uses key head i mod key_heads
    Weight conv_;         // [2 keys + values, kernel]
    Weight dt_bias_, a_;  // [heads], a negative
    Weight norm_;         // [value_dim]
    Weight out_;          // [width, values]
};

}  // namespace plait
