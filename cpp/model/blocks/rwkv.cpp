#include "model/blocks/rwkv.h"

#include "base/text.h"

namespace plait {

RwkvSizes read_rwkv_sizes(const Hparams& hp, int width, int n_shifts) {
    const int head_dim = hp.count("wkv.head_size");
    if (width % head_dim != 0)
        hp.refuse("wkv.head_size", text(head_dim, " does not divide the width ", width));
    if (int64_t{width} * head_dim > INT32_MAX)
        hp.refuse("wkv.head_size", text(head_dim, " for a width of ", width, " is too large"));
    if (hp.has("token_shift_count") && hp.count("token_shift_count") != n_shifts)
        hp.refuse("token_shift_count",
                  text("expected ", n_shifts, ", got ", hp.count("token_shift_count")));
    return {width / head_dim, head_dim};
}

ModelForm rwkv_form(const Hparams& hp, const Weights& w) {
    ModelForm form(read_info(hp, w), Norm::layer(hp));
    form.has_embedding_norm = true;
    form.norms = {.mixer_in = "attn_norm", .block_in = "attn_norm_2"};
    form.feed_forward = FeedForward::custom;
    return form;
}

RecurrentSpec rwkv_spec(const RwkvSizes& s) {
    const int64_t width = int64_t{s.heads} * s.head_dim;
    return {.elements = {width, width, width * s.head_dim}};
}

Value token_difference(Step& step, int layer, Value x, RwkvState kind) {
    const Value before = token_shift(x, step.states(layer, 0, kind));
    return step.name(before, Role::token_shift, layer) - x;
}

Value normalize_heads(Step& step, Value y, const NormWeights& w) {
    constexpr float kEpsilon = 64e-5f;
    return merge_heads(layer_norm(y, step.weight(w.weight), step.weight(w.bias), kEpsilon));
}

Value squared_relu(Step& step, Value x, const Weight& key) {
    return activate(linear(x, step.weight(key)), Activation::relu_squared);
}

}  // namespace plait
