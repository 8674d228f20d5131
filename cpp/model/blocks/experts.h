// Mixtures of experts: each token uses a few of many feed-forward blocks. arXiv:1701.06538; in
// transformers, arXiv:2401.04088.
#pragma once

#include <vector>

#include "graph/ops.h"
#include "model/blocks/feed_forward.h"
#include "model/hparams.h"
#include "model/step.h"
#include "model/weights.h"

namespace plait {

// How a token's experts are chosen and weighted.
struct Routing {
    Gating gating = Gating::softmax;
    bool renormalize = false;  // divide the weights of the chosen experts by their sum
    float scale = 1.0f;        // of the weights
    int n_groups = 1;          // groups of consecutive experts
    // Experts are chosen only from this many groups, those with the highest sum of the `group_best`
    // best scores.
    int n_groups_used = 1;
    int group_best = 2;
};
// The experts of a model.
struct Mixture {
    int n_experts = 0;          // 0: the model has none
    int n_used = 0;             // by each token
    int n_ffn = 0;              // hidden size of one expert
    int n_shared_ffn = 0;       // hidden size of the shared experts together; 0: none
    bool gated = true;          // false: an expert is Wdown act(Wup x)
    bool weighs_input = false;  // the weight multiplies an expert's input, not its output
    Routing routing;
    std::vector<bool> layers;  // true if the layer has experts; empty: all layers have

    bool at(int layer) const {
        return n_experts > 0 && (layers.empty() || layers[static_cast<size_t>(layer)]);
    }
};
// Reads expert_count and expert_used_count. With `required`, a model without experts is an error.
Mixture read_mixture(const Hparams& hparams, bool required = true);
// Reads the mixture of LLaMA and Granite, if there is one: feed_forward_length is the hidden size of
// one expert, and the weights of the chosen experts sum to 1.
Mixture read_llama_mixture(const Hparams& hparams);
// Reads the mixture of DeepSeek-V2 and later models: the number of dense leading layers, the sizes
// of experts and shared experts, and the routing. Missing routing keys keep their value in
// `otherwise`. After the dense layers, every `step`-th layer has experts.
Mixture read_shared_mixture(const Hparams& hparams, int n_layers, const Routing& otherwise = {},
                            int step = 1);
// Returns the hidden size of one expert: expert_feed_forward_length or, without that key,
// feed_forward_length divided by the number of experts that a token uses.
int read_expert_length(const Hparams& hparams, const Mixture& mixture);
// Returns the hidden size of a shared expert: expert_shared_feed_forward_length or, without that
// key, feed_forward_length.
int read_shared_expert_length(const Hparams& hparams);
struct ExpertWeights {
    Weight router, router_bias;  // [e, width], [e]
    Weight selection_bias;       // [e], added to the scores for the choice of experts only
    Weight gate,
        gate_bias;  // [e, ffn, width], [e, ffn]; absent if `up` includes it or there is no gate
    Weight up, up_bias;      // [e, ffn | 2 ffn, width], [e, ffn | 2 ffn]
    Weight down, down_bias;  // [e, width, ffn], [e, width]
    Weight scale;            // [e], multiplies the output of each expert; optional
};
// Biases are optional.
ExpertWeights read_experts(const LayerWeights& w, int width, const Mixture& mixture);

// Returns the sum of weight * Wdown (act(Wgate x) * Wup x) over the chosen experts, or of weight *
// Wdown act(Wup x) if they are not gated. The router reads `router_input` if given, otherwise x.
Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const Mixture& mixture,
              Activation act, Value router_input = {});
// The same with the gate of gpt-oss; see clamped_swiglu.
Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const Mixture& mixture, float alpha, float limit);

// The experts that every token uses ("ffn_*_shexp"), as one block.
struct SharedExpertWeights {
    FeedForwardWeights ffn;
    Weight gate;  // [1, width]; optional
};
SharedExpertWeights read_shared_expert(const LayerWeights& w, int width, const Mixture& mixture);
// Returns the output of the shared experts, times sigmoid(w x) if they have a gate w.
Value shared_expert(Step& step, int layer, Value x, const SharedExpertWeights& w, Activation act);

}  // namespace plait
