// Layers of experts, of which each token visits a few. arXiv:1701.06538; as in arXiv:2401.04088.
#pragma once

#include "graph/ops.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

struct ExpertWeights {
    Weight router, router_bias;  // [e, width], [e]
    Weight selection_bias;       // [e]: joins the score that chooses, not the weight
    Weight gate, gate_bias;      // [e, ffn, width], [e, ffn]
    Weight up, up_bias;          // [e, ffn, width], [e, ffn]
    Weight down, down_bias;      // [e, width, ffn], [e, width]
};
struct ExpertCounts {
    int n_experts = 0;  // 0: the model has none
    int n_used = 0;     // by each token
};
ExpertCounts read_expert_counts(const Hparams& hparams);
// Biases are taken where the file has them.
ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn, const ExpertCounts& counts);

// sum over the chosen experts of weight * Wdown (how(Wgate x) * Wup x).
Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const RouteOp& routing,
              Activation how);
// The same with gpt-oss's gate; see clamped_swiglu.
Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const RouteOp& routing, float alpha, float limit);

}  // namespace plait
