// Gemma 3n. Gemma Team 2025, https://ai.google.dev/gemma/docs/gemma-3n. AltUp (Baykal et al. 2023,
// arXiv:2301.13310) keeps several residual streams: a layer computes one of them and predicts the
// others. The model also has a low-rank residual (LAuReL, Menghani et al. 2024, arXiv:2411.07501),
// per-layer embeddings (blocks/per_layer.h), sparse gates in the first layers, and last layers that
// read the keys and values of earlier ones. n = RMSNorm, for v without weights. a is the active
// stream:
//
//   P_i = S_i + sum_j c_ij S_j             c = C tanh(R n(S_a)), a matrix per token
//   h   = n(P_a)
//   z   = (P_a + n(Wo attend(rope(n(Wq h)), rope(n(Wk h)), n(Wv h))) + h + n(Wr Wl h)) / sqrt(2)
//   z  += n(Wdown (gelu(sparse(Wgate n(z))) * Wup n(z)))
//   S_i = P_i + (1 + d_i) (z - P_a)        d = D tanh(R n(z))
//   S_i = S_i + y(S_a)   but for i = 0                  y: the token's embedding of the layer
#include <cmath>
#include <limits>

#include "base/text.h"
#include "model/blocks/per_layer.h"
#include "model/decoder.h"

namespace plait {
namespace {

constexpr int kLayersWithKeys = 20;  // of files without attention.shared_kv_layers

ModelForm gemma3n_form(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::rms(hp), RopePairs::halves,
                   {.qk_norm = QkNorm::shared, .normalizes_values = true});
    form.embedding_scale = std::sqrt(static_cast<float>(form.info.width));
    form.activation = Activation::gelu_tanh;
    form.norms = kSandwich;
    form.logit_softcap = hp.positive("final_logit_softcapping", 30.0f);
    form.info.joint_layers = kSharedByLayers;
    expect_unscaled_attention(hp);
    hp.count("attention.sliding_window", INT32_MAX);  // required
    form.set_windows(read_windows(hp, form.info.n_layers, 5));
    for (AttentionForm& layer : form.attention) {
        layer.how.scale = 1.0f;
        Rope& rope = layer.rotation.rope;
        if (is_windowed(layer)) rope = read_windowed_gemma_rope(hp, rope);
    }
    const int n_layers = form.info.n_layers;
    form.share_keys(hp.index("attention.shared_kv_layers", n_layers - 1,
                             std::max(0, n_layers - kLayersWithKeys)),
                    hp);
    return form;
}

// [tokens, width] -> [tokens, n width]
Value repeat(Value x, int n) {
    Value all = x;
    for (int i = 1; i < n; ++i) all = concat(all, x);
    return all;
}

// Scales each stream of y to the length (L2 norm) of x. x [tokens, width], y [tokens, k, width] ->
// [tokens, k width]
Value with_length_of(Value x, Value y) {
    const float shortest = std::sqrt(1e-5f * static_cast<float>(x.shape()[1]));
    const Value length = row_sum(x * l2_norm(x, 1e-12f));
    return merge_heads(l2_norm(y, shortest)) * length;
}

// Keeps what exceeds the mean of g by more than `deviations` standard deviations: relu(g - mean -
// deviations * deviation); arXiv:2506.06644.
Value sparse(Value g, float deviations) {
    const auto n = static_cast<float>(g.shape()[1]);
    const Value d = g - scale(row_sum(g), 1.0f / n);
    const Value length = row_sum(d * l2_norm(d, 1e-12f));
    return activate(d - scale(length, deviations / std::sqrt(n - 1.0f)), Activation::relu);
}

struct Gemma3nLayer {
    Weight predict, correct;   // C [k^2, k], D [k, k]
    Weight correct_scale;      // [width]
    Weight router;             // R [k, width]
    NormWeights router_in;     // [width]
    Weight low, high;          // Wl [rank, width], Wr [width, rank]
    NormWeights low_rank_out;  // [width]
    float deviations;          // -inf: gates are not sparse
};

class Gemma3n final : public Decoder {
public:
    Gemma3n(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, gemma3n_form(hp, w)),
          n_streams_(hp.count("altup.num_inputs", 16)),
          active_(hp.index("altup.active_idx", n_streams_ - 1, 0)),
          per_layer_(hp, w, info()) {
        const int64_t width = info().width;
        if (n_streams_ < 2)
            hp.refuse("altup.num_inputs", text("expected at least 2, got ", n_streams_));
        spread_ = w.get("altup_proj.weight", {n_streams_ - 1, width, width});
        gather_ = w.get("altup_unembd_proj.weight", {n_streams_ - 1, width, width});
        const std::vector<float> deviations = read_deviations(hp);
        for (int i = 0; i < info().n_layers; ++i)
            layers_.push_back(read_layer(w, i, deviations[static_cast<size_t>(i)]));
    }

protected:
    Value layers(Step& step, Value x) const override {
        const Value vectors = per_layer_.vectors(step, x, form_.norm);
        const int n_others = n_streams_ - 1;
        const Value others =
            head_linear(split_heads(repeat(x, n_others), n_others), step.weight(spread_));
        Value streams = split_heads(concat(x, with_length_of(x, others)), n_streams_);
        for (int i = 0; i < info().n_layers; ++i) {
            streams = update(step, i, streams, vectors);
            step.name(streams, Role::l_out, i);
        }
        return gathered(step, streams);
    }

    Value block(Step& step, int i, Value h) const override {
        const FeedForwardWeights& w = weights(i).feed_forward;
        Value g = step.name(linear(h, step.weight(w.gate)), Role::ffn_gate, i);
        const float deviations = layers_[static_cast<size_t>(i)].deviations;
        if (std::isfinite(deviations)) g = sparse(g, deviations);
        const Value up = step.name(linear(h, step.weight(w.up)), Role::ffn_up, i);
        const Value y = step.name(gate(g, up, form_.activation), Role::ffn_act, i);
        return step.name(linear(y, step.weight(w.down)), Role::ffn_out, i);
    }

private:
    std::vector<float> read_deviations(const Hparams& hp) const {
        constexpr std::string_view kKey = "activation_sparsity_scale";
        constexpr int kSparseLayers = 10;            // of files without the key
        constexpr float kOf95Percent = 1.64485363f;  // the 0.95 quantile of a normal distribution
        constexpr float kNone = -std::numeric_limits<float>::infinity();
        const auto n = static_cast<size_t>(info().n_layers);
        std::vector<float> deviations(n, kNone);
        if (hp.has(kKey)) {
            deviations = hp.metadata().reals(hp.key(kKey));
            if (deviations.size() != n)
                hp.refuse(kKey, text("expected ", n, " numbers, got ", deviations.size()));
        } else {
            std::fill_n(deviations.begin(), std::min<size_t>(n, kSparseLayers), kOf95Percent);
        }
        return deviations;
    }

    Gemma3nLayer read_layer(const Weights& weights, int i, float deviations) const {
        const LayerWeights w(weights, i);
        const int64_t width = info().width, k = n_streams_;
        const int64_t rank = w.rows("laurel_l.weight");
        return {.predict = w.get("altup_predict_coef.weight", {k * k, k}),
                .correct = w.get("altup_correct_coef.weight", {k, k}),
                .correct_scale = w.get("altup_correct_scale.weight", {width}),
                .router = w.get("altup_router.weight", {k, width}),
                .router_in = read_norm(w, "altup_router_norm", width),
                .low = w.get("laurel_l.weight", {rank, width}),
                .high = w.get("laurel_r.weight", {width, rank}),
                .low_rank_out = read_norm(w, "laurel_post_norm", width),
                .deviations = deviations};
    }

    Value active(Value streams) const {  // [n, k, width] -> [n, width]
        return slice(merge_heads(streams), int64_t{active_} * info().width, info().width);
    }

    Value route(Step& step, const Gemma3nLayer& w, Value x) const {  // [n, k]
        const Value h =
            scale(normalize(step, x, w.router_in), 1.0f / static_cast<float>(info().width));
        return activate(linear(h, step.weight(w.router)), Activation::tanh);
    }

    Value low_rank(Step& step, const Gemma3nLayer& w, Value h) const {
        const Value y = linear(linear(h, step.weight(w.low)), step.weight(w.high));
        return normalize(step, y, w.low_rank_out);
    }

    Value update(Step& step, int i, Value streams, Value vectors) const {
        const Gemma3nLayer& w = layers_[static_cast<size_t>(i)];
        const Layer& block_weights = weights(i);
        const Value c = linear(route(step, w, active(streams)), step.weight(w.predict));
        const Value predicted = streams + mix(streams, split_heads(c, n_streams_));

        const Value x = active(predicted);
        const Value h = step.name(normalize(step, x, block_weights.mixer_in), Role::attn_norm, i);
        const Value attended = normalize(step, mixer(step, i, h), block_weights.mixer_out);
        Value z = scale(x + attended + (h + low_rank(step, w, h)), 1.0f / std::sqrt(2.0f));
        step.name(z, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, z, block_weights.block_in), Role::ffn_norm, i);
        z = z + normalize(step, block(step, i, n), block_weights.block_out);

        const Value d = scale(linear(route(step, w, z), step.weight(w.correct)), 1.0f, 1.0f);
        const Value corrected =
            merge_heads(predicted + mix(split_heads(z - x, 1), split_heads(d, n_streams_)));
        const int64_t width = info().width;
        const Value first = slice(corrected, int64_t{active_} * width, width);
        const Value y =
            per_layer_(step, i, first * step.weight(w.correct_scale), vectors, form_.norm);
        const Value rest = slice(corrected, width, (n_streams_ - 1) * width);
        const Value changed = rest + repeat(y, n_streams_ - 1);
        return split_heads(concat(slice(corrected, 0, width), changed), n_streams_);
    }

    // Returns the mean of all streams. All but the first are projected before.
    Value gathered(Step& step, Value streams) const {
        const int64_t width = info().width;
        const Value all = merge_heads(streams);
        const Value others =
            split_heads(slice(all, width, (n_streams_ - 1) * width), n_streams_ - 1);
        const Value back =
            with_length_of(active(streams), head_linear(others, step.weight(gather_)));
        Value sum = slice(all, 0, width);
        for (int i = 0; i < n_streams_ - 1; ++i) sum = sum + slice(back, i * width, width);
        return scale(sum, 1.0f / static_cast<float>(n_streams_));
    }

    int n_streams_, active_;  // k, a
    PerLayerEmbedding per_layer_;
    Weight spread_, gather_;  // [k - 1, width, width] each
    std::vector<Gemma3nLayer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_gemma3n(const Hparams& hp, const Weights& w) {
    return std::make_unique<Gemma3n>(hp, w);
}

}  // namespace plait
