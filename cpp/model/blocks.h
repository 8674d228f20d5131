// The few multi-node phrases that architectures share.
#pragma once

#include "graph/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Sizes of an attention block.
struct Heads {
    int n_heads = 0;
    int n_kv_heads = 0;
    int head_dim = 0;  // of keys and values alike
};
Heads read_heads(const Hparams& hparams, int width);
// What such a block with rotated keys needs remembered.
AttentionSpec attention_spec(const Heads& heads, const Rope& rope, Window window = {});

// Projections of an attention block; biases are nothing where the file has none.
struct AttentionWeights {
    Weight wq, bq;  // [h*d, width], [h*d]
    Weight wk, bk;  // [hk*d, width], [hk*d]
    Weight wv, bv;  // [hk*d, width], [hk*d]
    Weight wo, bo;  // [width, h*d], [width]
};
AttentionWeights read_attention(const LayerWeights& w, int width, const Heads& heads);
// attend(rope(Wq . x), rope(Wk . x), Wv . x) over the layer's cache, before Wo. [n, h*d]
Value rotary_attention(Step& step, int layer, Value x, const AttentionWeights& w, const Heads& heads,
                       const Rope& rope, Value table, const Step::Attention& how);

// A gated feed-forward block.
struct FeedForwardWeights {
    Weight gate, gate_bias;  // [ffn, width], [ffn]
    Weight up, up_bias;      // [ffn, width], [ffn]
    Weight down, down_bias;  // [width, ffn], [width]
};
FeedForwardWeights read_feed_forward(const LayerWeights& w, int width, int n_ffn);
// Wdown . (how(Wgate . x) * Wup . x)
Value gated_feed_forward(Step& step, int layer, Value x, const FeedForwardWeights& w, Activation how);

// A layer of experts, of which each token visits a few. arXiv:1701.06538; as in arXiv:2401.04088
struct ExpertWeights {
    Weight router;            // [e, width]
    Weight gate, up, down;    // [e, ffn, width] x2, [e, width, ffn]
    int n_used = 0;
    bool renormalize = true;  // weights of the chosen sum to one
    float scale = 1.0f;
};
struct ExpertCounts {
    int n_experts = 0;  // 0: the model has none
    int n_used = 0;     // by each token
};
ExpertCounts read_expert_counts(const Hparams& hparams);
ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn, const ExpertCounts& counts);
Value gated_experts(Step& step, int layer, Value x, const ExpertWeights& w, Activation how);

}  // namespace plait
