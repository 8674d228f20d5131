#include "model/blocks/feed_forward.h"

#include "base/text.h"

namespace plait {

FeedForwardWeights read_feed_forward(const LayerWeights& w, int width, int n_ffn, FeedForward kind,
                                     std::string_view suffix) {
    const int64_t n_up = kind == FeedForward::gate_in_up ? int64_t{2} * n_ffn : n_ffn;
    const auto name = [&](const char* matrix, const char* part) {
        return text(matrix, suffix, part);
    };
    FeedForwardWeights f;
    if (kind == FeedForward::gated) {
        f.gate = w.get(name("ffn_gate", ".weight"), {n_ffn, width});
        f.gate_bias = w.find(name("ffn_gate", ".bias"), {n_ffn});
    }
    f.up = w.get(name("ffn_up", ".weight"), {n_up, width});
    f.up_bias = w.find(name("ffn_up", ".bias"), {n_up});
    f.down = w.get(name("ffn_down", ".weight"), {width, n_ffn});
    f.down_bias = w.find(name("ffn_down", ".bias"), {width});
    f.n_ffn = n_ffn;
    return f;
}

Value feed_forward(Step& step, int layer, Value x, const FeedForwardWeights& w, Activation act) {
    Value up = linear(x, step.weight(w.up), step.weight(w.up_bias));
    Value h;
    if (w.gate || w.up.type.shape[0] == 2 * w.n_ffn) {
        const Value g = w.gate ? linear(x, step.weight(w.gate), step.weight(w.gate_bias))
                               : slice(up, 0, w.n_ffn);
        if (!w.gate) up = slice(up, w.n_ffn, w.n_ffn);
        h = gate(step.name(g, Role::ffn_gate, layer), step.name(up, Role::ffn_up, layer), act);
    } else {
        h = activate(step.name(up, Role::ffn_up, layer), act);
    }
    step.name(h, Role::ffn_act, layer);
    return step.name(linear(h, step.weight(w.down), step.weight(w.down_bias)), Role::ffn_out,
                     layer);
}

}  // namespace plait
