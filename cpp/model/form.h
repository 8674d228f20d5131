// The form of a transformer as data. An architecture fills it in, and the frame then reads the
// weights that it requires.
#pragma once

#include <string_view>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/norm.h"
#include "model/model.h"

namespace plait {

// The names of a layer's norms in the file; a norm with an empty name is not applied.
struct LayerNorms {
    std::string_view mixer_in, mixer_out, mixer_sum;
    std::string_view block_in, block_out, block_sum;
};
//   pre_norm    x += mixer(n(x))       x += block(n(x))
//   post_norm   x += n(mixer(x))       x += n(block(x))
//   sandwich    x += n(mixer(n(x)))    x += n(block(n(x)))
//   sum_norm    x = n(x + mixer(x))    x = n(x + block(x))
inline constexpr LayerNorms kPreNorm{.mixer_in = "attn_norm", .block_in = "ffn_norm"};
inline constexpr LayerNorms kPostNorm{.mixer_out = "post_attention_norm",
                                      .block_out = "post_ffw_norm"};
inline constexpr LayerNorms kSandwich{.mixer_in = "attn_norm",
                                      .mixer_out = "post_attention_norm",
                                      .block_in = "ffn_norm",
                                      .block_out = "post_ffw_norm"};
inline constexpr LayerNorms kSumNorm{.mixer_sum = "attn_output_norm",
                                     .block_sum = "layer_output_norm"};

struct ModelForm {
    // A model whose layers do not attend, unless `attention` is set afterwards.
    ModelForm(ModelInfo info, const Norm& norm);
    // Every layer attends.
    ModelForm(ModelInfo info, const Hparams& hparams, const Norm& norm, RopePairs pairs,
              const AttentionForm& attention = {});
    ModelForm(const Hparams& hparams, const Weights& weights, const Norm& norm, RopePairs pairs,
              const AttentionForm& attention = {});
    // Layers whose head_count_kv is 0 do not attend.
    static ModelForm hybrid(const Hparams& hparams, const Weights& weights, const Norm& norm,
                            RopePairs pairs, const AttentionForm& attention = {});

    ModelInfo info;
    Norm norm;

    // Embedding
    float embedding_scale = 1.0f;
    bool scales_given_embeddings = false;  // embedding_scale also multiplies embedding inputs
    bool has_embedding_norm = false;       // token_embd_norm

    // Layers
    std::vector<AttentionForm> attention;  // by layer
    LayerNorms norms = kPreNorm;
    bool first_norm_is_optional = false;  // mixer_in of layer 0
    // Mixer and block are parallel: x += mixer(n(x)) + block(n'(x)), where n' is block_in, or n if
    // block_in is empty.
    bool parallel = false;
    float residual_scale = 1.0f;  // multiplies the outputs of mixer and block
    FeedForward feed_forward = FeedForward::gated;
    Activation activation = Activation::silu;
    Mixture mixture;

    // Output
    std::string_view output_norm = "output_norm";  // empty: there is no norm after the last layer
    float logit_scale = 1.0f;
    float logit_softcap = 0.0f;  // 0: none

    // Adds the layers for multi-token prediction, if the file has them. Each has the form of the
    // last layer that attends. Call it after everything else is set.
    void add_drafting_layers(const Hparams& hparams, const Weights& weights);
    void set_windows(const std::vector<Window>& windows);
    // Makes the last `n` layers store nothing. Each reads the keys and values of the last layer
    // before them that has the same window. Throws ModelError if there is no such layer or if its
    // heads have other sizes.
    void share_keys(int n, const Hparams& hparams);
};

}  // namespace plait
