// A decoder in which the layers without attention have a recurrent mixer. A Mixer is constructed from
// (Hparams, LayerWeights, width), returns its states by spec(), and builds its output when called.
#pragma once

#include <optional>
#include <vector>

#include "model/decoder.h"

namespace plait {

template <typename Mixer>
class RecurrentDecoder final : public Decoder {
public:
    RecurrentDecoder(const Hparams& hp, const Weights& w, ModelForm form)
        : Decoder(hp, w, std::move(form)), mixers_(static_cast<size_t>(info().n_layers)) {
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
