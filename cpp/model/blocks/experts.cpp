#include "model/blocks/experts.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

constexpr int64_t kMaxExperts = 65536;

// Builds the products before and after h = activate(g, up); g is empty if experts have no gate.
template <typename Activate>
Value route_and_combine(Step& step, int layer, Value x, Value router_input, const ExpertWeights& w,
                        const Mixture& mixture, Activate activate_hidden) {
    const Routing& how = mixture.routing;
    const Value logits = linear(router_input, step.weight(w.router), step.weight(w.router_bias));
    step.name(logits, Role::router_logits, layer);
    const Value routes = route(logits,
                               {mixture.n_used, how.renormalize, how.scale, how.gating,
                                how.n_groups, how.n_groups_used, how.group_best},
                               step.weight(w.selection_bias), step.weight(w.scale));
    step.name(routes, Role::router, layer);
    const Shape shape = x.shape();  // [n, width]
    if (mixture.weighs_input) x = combine(split_heads(x, 1), routes);
    Value up = expert_linear(x, step.weight(w.up), routes, step.weight(w.up_bias));
    Value g;
    if (w.gate) {
        g = expert_linear(x, step.weight(w.gate), routes, step.weight(w.gate_bias));
    } else if (mixture.gated) {
        g = slice(up, 0, mixture.n_ffn);
        up = slice(up, mixture.n_ffn, mixture.n_ffn);
    }
    if (g) step.name(g, Role::ffn_gate, layer);
    const Value h = activate_hidden(g, step.name(up, Role::ffn_up, layer));
    step.name(h, Role::ffn_act, layer);
    const Value y = expert_linear(h, step.weight(w.down), routes, step.weight(w.down_bias));
    step.name(y, Role::experts, layer);
    const Value sum = mixture.weighs_input ? reshape(y, shape) : combine(y, routes);
    return step.name(sum, Role::ffn_out, layer);
}

// Reads expert_gating_func, expert_weights_norm, expert_weights_scale, expert_group_count and
// expert_group_used_count.
Routing read_routing(const Hparams& hp, int n_experts, int n_used, const Routing& otherwise) {
    constexpr std::array kGatings = {Gating::softmax, Gating::softmax, Gating::sigmoid,
                                     Gating::softmax_chosen};
    Routing how = otherwise;
    const int gating = hp.index("expert_gating_func", INT32_MAX, 0);
    if (gating >= std::ssize(kGatings))
        throw UnsupportedError(text(hp.key("expert_gating_func"), ": expected 0 to ",
                                    kGatings.size() - 1, ", got ", gating));
    if (gating > 0) how.gating = kGatings[static_cast<size_t>(gating)];
    how.renormalize = hp.flag("expert_weights_norm", otherwise.renormalize);
    const float scale = hp.number("expert_weights_scale", 0.0f);
    if (scale != 0.0f) how.scale = scale;  // 0 means that there is none
    const int groups = hp.index("expert_group_count", n_experts, 0);
    if (groups <= 1) return how;
    how.n_groups = groups;
    how.n_groups_used = hp.count("expert_group_used_count", groups);
    const int of_group = n_experts / groups;
    if (of_group * groups != n_experts)
        hp.refuse("expert_group_count",
                  text(groups, " groups do not divide the ", n_experts, " experts"));
    if (of_group * how.n_groups_used < n_used)
        hp.refuse("expert_group_used_count",
                  text(how.n_groups_used, " groups of ", of_group, " hold fewer than the ", n_used,
                       " experts that a token uses"));
    return how;
}

}  // namespace

Mixture read_mixture(const Hparams& hp, bool required) {
    Mixture mixture;
    mixture.n_experts =
        required ? hp.count("expert_count", kMaxExperts) : hp.index("expert_count", kMaxExperts, 0);
    mixture.n_used = hp.index("expert_used_count", kMaxExperts, 0);
    if (mixture.n_experts > 0 && (mixture.n_used < 1 || mixture.n_used > mixture.n_experts))
        hp.refuse("expert_used_count",
                  text("expected 1 to ", mixture.n_experts, ", got ", mixture.n_used));
    return mixture;
}

Mixture read_llama_mixture(const Hparams& hp) {
    Mixture mixture = read_mixture(hp, /*required=*/false);
    mixture.n_ffn = hp.count("feed_forward_length");
    mixture.routing.renormalize = true;
    return mixture;
}

Mixture read_shared_mixture(const Hparams& hp, int n_layers, const Routing& otherwise, int step) {
    const int n_dense = hp.index("leading_dense_block_count", Hparams::kMaxLayers, 0);
    std::vector<bool> layers(static_cast<size_t>(n_layers));
    for (int i = 0; i < n_layers; ++i)
        layers[static_cast<size_t>(i)] = i >= n_dense && (i + 1) % step == 0;
    if (std::ranges::find(layers, true) == layers.end()) return {};  // all layers are dense
    Mixture mixture = read_mixture(hp);
    mixture.layers = std::move(layers);
    mixture.routing = read_routing(hp, mixture.n_experts, mixture.n_used, otherwise);
    mixture.n_ffn = hp.count("expert_feed_forward_length");
    const int n_shared = hp.index("expert_shared_count", Hparams::kMaxSize / mixture.n_ffn, 0);
    mixture.n_shared_ffn =
        hp.index("expert_shared_feed_forward_length", Hparams::kMaxSize, n_shared * mixture.n_ffn);
    return mixture;
}

int read_expert_length(const Hparams& hp, const Mixture& mixture) {
    const int of_expert = hp.index("expert_feed_forward_length", Hparams::kMaxSize, 0);
    if (of_expert > 0) {
        // The hidden size of the dense model that this one was derived from. It is not used, but a
        // value below the size of an expert means that the file is damaged.
        const int dense = hp.count("feed_forward_length", Hparams::kMaxSize, of_expert);
        if (dense < of_expert)
            hp.refuse("feed_forward_length",
                      text("expected at least the ", of_expert, " of one expert, got ", dense));
        return of_expert;
    }
    const int all = hp.count("feed_forward_length");
    if (all % mixture.n_used != 0)
        hp.refuse("feed_forward_length",
                  text(all, " is not a multiple of the ", mixture.n_used, " experts used"));
    return all / mixture.n_used;
}

int read_shared_expert_length(const Hparams& hp) {
    const int shared = hp.index("expert_shared_feed_forward_length", Hparams::kMaxSize, 0);
    return shared > 0 ? shared : hp.count("feed_forward_length");
}

ExpertWeights read_experts(const LayerWeights& w, int width, const Mixture& mixture) {
    const int64_t e = mixture.n_experts, n_ffn = mixture.n_ffn;
    ExpertWeights weights;
    weights.router = w.get("ffn_gate_inp.weight", {e, width});
    weights.router_bias = w.find("ffn_gate_inp.bias", {e});
    weights.selection_bias = w.find("exp_probs_b.bias", {e});
    if (w.has("ffn_gate_up_exps.weight")) {
        weights.up = w.get("ffn_gate_up_exps.weight", {e, 2 * n_ffn, width});
        weights.up_bias = w.find("ffn_gate_up_exps.bias", {e, 2 * n_ffn});
    } else {
        if (mixture.gated) weights.gate = w.get("ffn_gate_exps.weight", {e, n_ffn, width});
        if (mixture.gated) weights.gate_bias = w.find("ffn_gate_exps.bias", {e, n_ffn});
        weights.up = w.get("ffn_up_exps.weight", {e, n_ffn, width});
        weights.up_bias = w.find("ffn_up_exps.bias", {e, n_ffn});
    }
    weights.down = w.get("ffn_down_exps.weight", {e, width, n_ffn});
    weights.down_bias = w.find("ffn_down_exps.bias", {e, width});
    weights.scale = w.find("ffn_down_exps.scale", {e});
    return weights;
}

SharedExpertWeights read_shared_expert(const LayerWeights& w, int width, const Mixture& mixture) {
    const FeedForward kind = mixture.gated ? FeedForward::gated : FeedForward::plain;
    return {read_feed_forward(w, width, mixture.n_shared_ffn, kind, "_shexp"),
            w.find("ffn_gate_inp_shexp.weight", {1, width})};
}

Value shared_expert(Step& step, int layer, Value x, const SharedExpertWeights& w, Activation act) {
    const Value y = feed_forward(step, layer, x, w.ffn, act);
    if (!w.gate) return y;
    return y * activate(linear(x, step.weight(w.gate)), Activation::sigmoid);
}

Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const Mixture& mixture,
              Activation act, Value router_input) {
    if (!router_input) router_input = x;
    return route_and_combine(step, layer, x, router_input, w, mixture, [act](Value g, Value up) {
        return g ? gate(g, up, act) : activate(up, act);
    });
}

Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const Mixture& mixture, float alpha, float limit) {
    return route_and_combine(step, layer, x, x, w, mixture, [=](Value g, Value up) {
        return clamped_swiglu(g, up, alpha, limit);
    });
}

}  // namespace plait
