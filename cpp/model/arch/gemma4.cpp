// Gemma 4. Gemma Team 2026, https://huggingface.co/google/gemma-4-E2B-it. Layers with a window and
// layers with full attention differ in head sizes and rotation. Full layers rotate a part of the
// pairs and may use keys as values. The last layers read the keys and values of an earlier layer
// with the same window. n = RMSNorm, for v without weights.
//
//   x += n(Wo attend(rope(n(Wq n(x))), rope(n(Wk n(x))), n(Wv n(x))))
//   x += n(Wdown (gelu(Wgate n(x)) * Wup n(x)))                        GeGLU
//   x  = s (x + y)     y: the token's embedding of the layer (blocks/per_layer.h); s: a number
#include <cmath>
#include <optional>

#include "base/text.h"
#include "model/blocks/per_layer.h"
#include "model/decoder.h"

namespace plait {
namespace {

// Sets the head sizes and the rotation of a layer with a window.
void set_windowed(AttentionForm& layer, const Hparams& hp) {
    const int head_dim =
        hp.count("attention.key_length_swa", Hparams::kMaxSize, layer.heads.head_dim);
    if (hp.count("attention.value_length_swa", Hparams::kMaxSize, head_dim) != head_dim)
        hp.refuse("attention.value_length_swa",
                  text("expected ", head_dim, ", the length of keys"));
    layer.heads.head_dim = head_dim;
    layer.keys_may_be_values = false;
    Rope& rope = layer.rotation.rope;
    rope = read_windowed_gemma_rope(hp, rope);
    rope.n_rot = hp.count("rope.dimension_count_swa", head_dim, head_dim);
    if (rope.n_rot % 2 != 0)
        hp.refuse("rope.dimension_count_swa", text("expected an even number, got ", rope.n_rot));
}

// Sets the rotation of a layer without a window. The embeddings of an image attend to each other in
// both directions only in layers with a window.
void set_full(AttentionForm& layer, const Weights& w) {
    layer.rotation.factors = read_rope_factors(w, layer.rotation.rope);
    layer.always_causal = true;
}

ModelForm gemma4_form(const Hparams& hp, const Weights& w) {
    ModelForm form(
        hp, w, Norm::rms(hp), RopePairs::halves,
        {.qk_norm = QkNorm::shared, .normalizes_values = true, .keys_may_be_values = true});
    form.embedding_scale = std::sqrt(static_cast<float>(form.info.width));
    form.activation = Activation::gelu_tanh;
    form.norms = kSandwich;
    form.logit_softcap = hp.positive("final_logit_softcapping", 30.0f);
    form.info.joint_layers = kSharedByLayers;
    expect_unscaled_attention(hp);
    hp.count("attention.sliding_window", INT32_MAX);  // required
    form.set_windows(read_windows(hp, form.info.n_layers, 6));
    for (AttentionForm& layer : form.attention) {
        layer.how.scale = 1.0f;
        if (is_windowed(layer))
            set_windowed(layer, hp);
        else
            set_full(layer, w);
    }
    form.share_keys(hp.index("attention.shared_kv_layers", form.info.n_layers - 1, 0), hp);
    if (hp.index("expert_count", INT32_MAX, 0) == 0) return form;
    form.mixture = read_mixture(hp);
    form.mixture.n_ffn = hp.count("expert_feed_forward_length");
    form.mixture.routing.renormalize = true;
    form.norms.block_in = {};  // each branch of the block has its own norm
    return form;
}

// The branches of a block with experts:
//
//   n1(f(n(x))) + n2(sum_e p_e s_e f_e(n'(x)))
//
// where e runs over the experts with the largest p = softmax(Wrouter (r * n(x))), and the p of the
// chosen experts are scaled to sum to 1.
struct Branches {
    NormWeights dense_in, dense_out;      // n, n1; [width]
    NormWeights experts_in, experts_out;  // n', n2; [width]
    NormWeights router_in;                // r sqrt(width); [width]
    FeedForwardWeights dense;
};

class Gemma4 final : public Decoder {
public:
    Gemma4(const Hparams& hp, const Weights& w) : Decoder(hp, w, gemma4_form(hp, w)) {
        if (hp.index("embedding_length_per_layer_input", Hparams::kMaxSize, 0) > 0)
            per_layer_.emplace(hp, w, info());
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            scales_.push_back(l.find("layer_output_scale.weight", {1}));
            if (form_.mixture.at(i)) branches_.push_back(read_branches(hp, l, i));
        }
    }

protected:
    Value layers(Step& step, Value x) const override {
        const Value vectors = per_layer_ ? per_layer_->vectors(step, x, form_.norm) : Value{};
        for (int i = 0; i < info().n_layers; ++i) {
            x = layer(step, i, x);
            if (per_layer_) x = x + (*per_layer_)(step, i, x, vectors, form_.norm);
            if (const Weight& s = scales_[static_cast<size_t>(i)]) x = x * step.weight(s);
            step.name(x, Role::l_out, i);
        }
        return x;
    }

    Value block(Step& step, int i, Value x) const override {
        if (!form_.mixture.at(i)) return Decoder::block(step, i, x);
        const Branches& w = branches_[static_cast<size_t>(i)];
        const Value h = normalize(step, x, w.dense_in);
        const Value dense = feed_forward(step, i, h, w.dense, form_.activation);
        const float r = 1.0f / std::sqrt(static_cast<float>(info().width));
        const Value chosen =
            experts(step, i, normalize(step, x, w.experts_in), weights(i).experts, form_.mixture,
                    form_.activation, scale(normalize(step, x, w.router_in), r));
        return normalize(step, dense, w.dense_out) + normalize(step, chosen, w.experts_out);
    }

private:
    Branches read_branches(const Hparams& hp, const LayerWeights& l, int i) const {
        const int width = info().width;
        const int n_ffn = hp.per_layer("feed_forward_length", i + 1, 1, Hparams::kMaxSize).back();
        return {.dense_in = read_norm(l, "ffn_norm", width),
                .dense_out = read_norm(l, "post_ffw_norm_1", width),
                .experts_in = read_norm(l, "pre_ffw_norm_2", width),
                .experts_out = read_norm(l, "post_ffw_norm_2", width),
                .router_in = {l.get("ffn_gate_inp.scale", {width}), {}},
                .dense = read_feed_forward(l, width, n_ffn)};
    }

    std::optional<PerLayerEmbedding> per_layer_;
    std::vector<Weight> scales_;      // by layer; optional
    std::vector<Branches> branches_;  // by layer, if the model has experts
};

}  // namespace

std::unique_ptr<Model> make_gemma4(const Hparams& hp, const Weights& w) {
    return std::make_unique<Gemma4>(hp, w);
}

}  // namespace plait
