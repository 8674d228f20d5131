#include "model/blocks/experts.h"

#include "base/text.h"

namespace plait {
namespace {

// The block around a gate: h = combine_gate(Wgate x, Wup x).
template <typename Gate>
Value route_and_combine(Step& step, int layer, Value x, const ExpertWeights& w,
                        const RouteOp& routing, Gate combine_gate) {
    const Value logits = linear(x, step.weight(w.router), step.weight(w.router_bias));
    step.name(logits, Role::router, layer);
    const Value routes = route(logits, routing, step.weight(w.selection_bias));
    const Value g = expert_linear(x, step.weight(w.gate), routes, step.weight(w.gate_bias));
    const Value up = expert_linear(x, step.weight(w.up), routes, step.weight(w.up_bias));
    const Value h = combine_gate(step.name(g, Role::ffn_gate, layer),
                                 step.name(up, Role::ffn_up, layer));
    step.name(h, Role::ffn_act, layer);
    const Value y = expert_linear(h, step.weight(w.down), routes, step.weight(w.down_bias));
    step.name(y, Role::experts, layer);
    return step.name(combine(y, routes), Role::ffn_out, layer);
}

}  // namespace

ExpertCounts read_expert_counts(const Hparams& hp) {
    constexpr int64_t kMostExperts = 65536;
    const ExpertCounts counts{hp.index("expert_count", kMostExperts, 0),
                              hp.index("expert_used_count", kMostExperts, 0)};
    if (counts.n_experts > 0 && (counts.n_used < 1 || counts.n_used > counts.n_experts))
        hp.refuse("expert_used_count", text("expected 1 to ", counts.n_experts, ", got ", counts.n_used));
    return counts;
}

ExpertWeights read_experts(const LayerWeights& w, int width, int n_ffn, const ExpertCounts& counts) {
    const int64_t e = counts.n_experts;
    return {
        .router = w.get("ffn_gate_inp.weight", {e, width}),
        .router_bias = w.find("ffn_gate_inp.bias", {e}),
        .selection_bias = w.find("exp_probs_b.bias", {e}),
        .gate = w.get("ffn_gate_exps.weight", {e, n_ffn, width}),
        .gate_bias = w.find("ffn_gate_exps.bias", {e, n_ffn}),
        .up = w.get("ffn_up_exps.weight", {e, n_ffn, width}),
        .up_bias = w.find("ffn_up_exps.bias", {e, n_ffn}),
        .down = w.get("ffn_down_exps.weight", {e, width, n_ffn}),
        .down_bias = w.find("ffn_down_exps.bias", {e, width}),
    };
}

Value experts(Step& step, int layer, Value x, const ExpertWeights& w, const RouteOp& routing,
              Activation how) {
    return route_and_combine(step, layer, x, w, routing,
                             [how](Value g, Value up) { return gate(g, up, how); });
}

Value clamped_experts(Step& step, int layer, Value x, const ExpertWeights& w,
                      const RouteOp& routing, float alpha, float limit) {
    return route_and_combine(step, layer, x, w, routing, [=](Value g, Value up) {
        return clamped_swiglu(g, up, alpha, limit);
    });
}

}  // namespace plait
