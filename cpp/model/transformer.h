// The frame of all models whose layers share one residual stream. Each layer is a mixer, which
// moves information between tokens, and a block, which works on each token alone:
//
//   x += r n(mixer(n(x)))
//   x += r n(block(n(x)))
//
// ModelForm lists the norms. The mixer is attention and the block is a feed-forward block or a
// mixture of experts, unless an architecture overrides them. Decoder and Encoder add the outputs
// after the last layer.
#pragma once

#include <vector>

#include "model/form.h"
#include "model/step.h"

namespace plait {

class Transformer : public Model {
public:
    MemorySpecs memory_specs() const final;

protected:
    Transformer(const Hparams& hparams, const Weights& weights, ModelForm form);

    // The input of the first layer.
    virtual Value embed(Step& step) const;
    // The input of the first layer of the range of the step.
    Value enter(Step& step) const {
        return step.layers().has_first() ? embed(step) : step.passed(info());
    }
    // x after all layers of the range. Architectures whose layers share more than x override it.
    virtual Value layers(Step& step, Value x) const;
    // x after layer i.
    virtual Value layer(Step& step, int i, Value x) const;
    virtual Value mixer(Step& step, int i, Value h) const;
    virtual Value block(Step& step, int i, Value h) const;
    // The states that layer i stores.
    virtual std::vector<StateSpec> layer_memory(int i) const;
    KeyRotation key_rotation(int i, const BuildOptions& options) const override;

    bool attends(int i) const { return attention_form(i).heads.n_kv_heads > 0; }
    const AttentionForm& attention_form(int i) const {
        return form_.attention[static_cast<size_t>(i)];
    }
    Value normalize(Step& step, Value x, const NormWeights& w) const {
        return plait::normalize(step, x, w, form_.norm);
    }

    struct Layer {
        NormWeights mixer_in, mixer_out, mixer_sum, block_in, block_out, block_sum;
        AttentionWeights attention;
        FeedForwardWeights feed_forward;
        ExpertWeights experts;
        SharedExpertWeights shared;
    };
    const Layer& weights(int i) const { return layers_[static_cast<size_t>(i)]; }

    ModelForm form_;
    Weight embedding_;            // [vocab, width]
    Weight token_types_;          // [types, width]; optional
    Weight position_embedding_;   // [n_positions, width]; optional
    NormWeights embedding_norm_;  // [width]; optional
    NormWeights output_norm_;     // [width]; optional

private:
    Layer read_layer(const Hparams& hparams, const LayerWeights& w, int i) const;
    Value normalize_named(Step& step, Value x, const NormWeights& w, Role role, int i) const;
    Value residual(Step& step, Value x, Value y, const NormWeights& out,
                   const NormWeights& sum) const;

    std::vector<Layer> layers_;
};

}  // namespace plait
