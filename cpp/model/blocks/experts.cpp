#include "model/blocks/experts.h"

#include <array>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// The block around a gate: h = combine_gate(Wgate x, Wup x).
template <typename Gate>
Value route_and_combine(Step& step, int layer, Value x, const ExpertWeights& w,
                        const RouteParams& routing, Gate combine_gate) {
    const Value logits = linear(x, step.weight(w.router), step.weight(w.router_bias));
    step.name(logits, Role::router, layer);
    const Value routes = route(logits, routing, step.weight(w.selection_bias));
    Value up = expert_linear(x, step.weight(w.up), routes, step.weight(w.up_bias));
    Value g;
    if (w.gate) {
        g = expert_linear(x, step.weight(w.gate), routes, step.weight(w.gate_bias));
    } else {
        g = slice(up, 0, w.n_ffn);
        up = slice(up, w.n_ffn, w.n_ffn);
    }
    const Value h =
        combine_gate(step.name(g, Role::ffn_gate, layer), step.name(up, Role::ffn_up, layer));
    step.name(h, Role::ffn_act, layer);
    const Value y = expert_linear(h, step.weight(w.down), routes, step.weight(w.down_bias));
    step.name(y, Role::experts, layer);
    return step.name(combine(y, routes), Role::ffn_out, layer);
}

}  // namespace

ExpertCounts read_expert_counts(const Hparams& hp, int least) {
    constexpr int64_t kMostExperts = 65536;
    ExpertCounts counts;
    counts.n_experts = least > 0 ? hp.count("expert_count", kMostExperts)
                                 : hp.index("expert_count", kMostExperts, 0);
    counts.n_used = hp.index("expert_used_count", kMostExperts, 0);
    if (counts.n_experts > 0 && (counts.n_used < 1 || counts.n_used > counts.n_experts))
        hp.refuse("expert_used_count",
                  text("expected 1 to ", counts.n_experts, ", got ", counts.n_used));
    return counts;
}

int read_expert_length(const Hparams& hp, const ExpertCounts& counts) {
    const int of_expert = hp.index("expert_feed_forward_length", Hparams::kMost, 0);
    if (of_expert > 0) {
        // The dense block that a model was derived from; nothing reads its length, but 1 is a lie.
        const int dense = hp.count("feed_forward_length", Hparams::kMost, of_expert);
        if (dense < of_expert)
            hp.refuse("feed_forward_length",
                      text("expected at least the ", of_expert, " of one expert, got ", dense));
        return of_expert;
    }
    const int all = hp.count("feed_forward_length");
    if (all % counts.n_used != 0)
        hp.refuse("feed_forward_length",
                  text(all, " is not shared out evenly among ", counts.n_used, " experts"));
    return all / counts.n_used;
}

RouteParams read_routing(const Hparams& hp, const ExpertCounts& counts) {
    constexpr std::array kGatings = {Gating::softmax, Gating::softmax, Gating::sigmoid,
                                     Gating::softmax_chosen};
    const int gating = hp.index("expert_gating_func", INT32_MAX, 0);
    if (gating >= std::ssize(kGatings))
        throw UnsupportedError(text(hp.key("expert_gating_func"), ": expected 0 to ",
                                    kGatings.size() - 1, ", got ", gating));
    RouteParams how{counts.n_used, hp.flag("expert_weights_norm", false),
                    hp.number("expert_weights_scale", 0.0f), kGatings[static_cast<size_t>(gating)]};
    if (how.scale == 0.0f) how.scale = 1.0f;  // as files say that there is none
    const int groups = hp.index("expert_group_count", counts.n_experts, 0);
    if (groups <= 1) return how;
    how.n_groups = groups;
    how.n_groups_used = hp.count("expert_group_used_count", groups);
    const int of_group = counts.n_experts / groups;
    if (of_group * groups != counts.n_experts)
        hp.refuse("expert_group_count",
                  text(groups, " groups do not divide the ", counts.n_experts, " experts"));
    if (of_group * how.n_groups_used < counts.n_used)
        hp.refuse("expert_group_used_count",
                  text(how.n_groups_used, " groups of ", of_group, " hold fewer than the ",
                       counts.n_used, " experts that a token visits"));
    return how;
}

ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn,
                           const ExpertCounts& counts) {
    const int64_t e = counts.n_experts;
    ExpertWeights weights;
    weights.router = w.get("ffn_gate_inp.weight", {e, width});
    weights.router_bias = w.find("ffn_gate_inp.bias", {e});
    weights.selection_bias = w.find("exp_probs_b.bias", {e});
    if (w.has("ffn_gate_up_exps.weight")) {
        weights.up = w.get("ffn_gate_up_exps.weight", {e, int64_t{2} * n_ffn, width});
        weights.up_bias = w.find("ffn_gate_up_exps.bias", {e, int64_t{2} * n_ffn});
    } else {
        weights.gate = w.get("ffn_gate_exps.weight", {e, n_ffn, width});
        weights.gate_bias = w.find("ffn_gate_exps.bias", {e, n_ffn});
        weights.up = w.get("ffn_up_exps.weight", {e, n_ffn, width});
        weights.up_bias = w.find("ffn_up_exps.bias", {e, n_ffn});
    }
    weights.down = w.get("ffn_down_exps.weight", {e, width, n_ffn});
    weights.down_bias = w.find("ffn_down_exps.bias", {e, width});
    weights.n_ffn = n_ffn;
    return weights;
}

SharedExpertWeights read_shared_expert(const LayerWeights& w, int width, int n_ffn) {
    return {read_feed_forward(w, width, n_ffn, FeedForward::gated, "_shexp"),
            w.find("ffn_gate_inp_shexp.weight", {1, width})};
}

Value shared_expert(Step& step, int layer, Value x, const SharedExpertWeights& w, Activation how) {
    const Value y = feed_forward(step, layer, x, w.ffn, how);
    if (!w.gate) return y;
    return y * activate(linear(x, step.weight(w.gate)), Activation::sigmoid);
}

Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const RouteParams& routing,
              Activation how) {
    return route_and_combine(step, layer, x, w, routing,
                             [how](Value g, Value up) { return gate(g, up, how); });
}

Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const RouteParams& routing, float alpha, float limit) {
    return route_and_combine(step, layer, x, w, routing, [=](Value g, Value up) {
        return clamped_swiglu(g, up, alpha, limit);
    });
}

}  // namespace plait
