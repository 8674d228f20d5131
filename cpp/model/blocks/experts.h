// Layers of experts, of which each token visits a few. arXiv:1701.06538; as in arXiv:2401.04088.
#pragma once

#include "graph/ops.h"
#include "model/blocks/feed_forward.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// Where one matrix holds gate and up, `up` is it and `n_ffn` half of its rows.
struct ExpertWeights {
    Weight router, router_bias;  // [e, width], [e]
    Weight selection_bias;       // [e]: joins the score that chooses, not the weight
    Weight gate, gate_bias;      // [e, ffn, width], [e, ffn]
    Weight up, up_bias;          // [e, ffn | 2 ffn, width], [e, ffn]
    Weight down, down_bias;      // [e, width, ffn], [e, width]
    int64_t n_ffn = 0;
};
struct ExpertCounts {
    int n_experts = 0;  // 0: the model has none
    int n_used = 0;     // by each token
};
// `least`: 1 for models that are nothing without experts.
ExpertCounts read_expert_counts(const Hparams& hparams, int least = 0);
// Rows of an expert's gate: expert_feed_forward_length, or what each of the experts that a token
// visits has of feed_forward_length.
int read_expert_length(const Hparams& hparams, const ExpertCounts& counts);
// How experts are chosen, by the keys of models that state it: expert_gating_func (none: softmax),
// expert_weights_norm and _scale, expert_group_count and _used_count.
RouteParams read_routing(const Hparams& hparams, const ExpertCounts& counts);
// Biases are taken where the file has them.
ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn, const ExpertCounts& counts);

// sum over the chosen experts of weight * Wdown (how(Wgate x) * Wup x).
Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const RouteParams& routing,
              Activation how);
// The same with gpt-oss's gate; see clamped_swiglu.
Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const RouteParams& routing, float alpha, float limit);

// What every token visits besides: "ffn_*_shexp", with a gate of its own in some models.
struct SharedExpertWeights {
    FeedForwardWeights ffn;
    Weight gate;  // [1, width]
};
SharedExpertWeights read_shared_expert(const LayerWeights& w, int width, int n_ffn);
// Wdown (how(Wgate x) * Wup x), times sigmoid(w x) where there is a gate.
Value shared_expert(Step& step, int layer, Value x, const SharedExpertWeights& w, Activation how);

}  // namespace plait
