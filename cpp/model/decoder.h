// A transformer that predicts the next token: the last layer is followed by a norm and the product
// with the output matrix.
#pragma once

#include <optional>
#include <vector>

#include "model/transformer.h"

namespace plait {

class Decoder : public Transformer {
public:
    // Reads the weights that the form requires. Without output.weight, the embedding matrix is also
    // the output matrix.
    Decoder(const Hparams& hparams, const Weights& weights, ModelForm form);

protected:
    void build_decoder(Step& step) const override;

private:
    // A layer for multi-token prediction, next to what it has in common with other layers.
    struct Drafting {
        NormWeights token_norm, hidden_norm, output_norm;
        Weight projection;  // [width, 2 width]
        Weight output;      // [vocab, width]
    };
    Drafting read_drafting(const Weights& w, int i) const;
    void build_drafting(Step& step) const;
    void emit(Step& step, Value x, const NormWeights& norm, const Weight& output) const;

    Weight output_, output_bias_;  // [vocab, width], [vocab]
    std::vector<Drafting> drafting_;
};

// A decoder in which the layers without attention have a recurrent mixer. A Mixer is constructed
// from (Hparams, LayerWeights, width). Its spec() returns its states, and calling it builds its
// output.
template <typename Mixer>
class RecurrentDecoder final : public Decoder {
public:
    RecurrentDecoder(const Hparams& hp, const Weights& w, ModelForm form)
        : Decoder(hp, w, std::move(form)), mixers_(static_cast<size_t>(info().n_all_layers())) {
        for (int i = 0; i < info().n_layers; ++i)
            if (!attends(i))
                mixers_[static_cast<size_t>(i)].emplace(hp, LayerWeights(w, i), info().width);
    }

protected:
    std::vector<StateSpec> layer_memory(int i) const override {
        const std::optional<Mixer>& mixer = mixers_[static_cast<size_t>(i)];
        if (mixer) return {mixer->spec()};
        return Decoder::layer_memory(i);
    }

    Value mixer(Step& step, int i, Value h) const override {
        const std::optional<Mixer>& mixer = mixers_[static_cast<size_t>(i)];
        return mixer ? (*mixer)(step, i, 0, h, form_.norm) : Decoder::mixer(step, i, h);
    }

private:
    std::vector<std::optional<Mixer>> mixers_;  // by layer
};

}  // namespace plait
