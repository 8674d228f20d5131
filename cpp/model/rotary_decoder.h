// Decoders whose layers are attention over rotated keys, then a block of the architecture's own,
// each on a norm of the stream:
//
//   x += Wo . attend(rope(Wq . n(x)), rope(Wk . n(x)), Wv . n(x))
//   x += block(n(x))
#pragma once

#include <vector>

#include "model/blocks/attention.h"
#include "model/decoder.h"

namespace plait {

class RotaryDecoder : public Decoder {
public:
    MemorySpecs memory_specs() const override;

protected:
    // `interleaved`: elements that rotate together are neighbours, else half a head apart.
    RotaryDecoder(const Hparams& hparams, const Weights& weights, const Norm& norm,
                  bool interleaved, QkNorm qk_norm = QkNorm::none);
    RotaryDecoder(ModelInfo info, const Hparams& hparams, const Weights& weights, const Norm& norm,
                  bool interleaved, QkNorm qk_norm = QkNorm::none);

    // What layer i adds to the stream after attention.
    virtual Value block(Step& step, int i, Value x) const = 0;
    // Whether the layer knows positions.
    virtual bool rotates(int) const { return true; }

    KeyRotation key_rotation(int layer, const BuildOptions& options) const override;
    Value layer(Step& step, int i, Value x) const override;

    Heads heads_;
    Rope rope_;
    Weight rope_factors_;  // [n_rot / 2], of llama-3 scaling; nothing where there is none

private:
    struct AttentionLayer {
        NormWeights attn_norm, ffn_norm;
        AttentionWeights attn;
    };

    Step::Attention attention_;
    std::vector<AttentionLayer> attention_layers_;
};

}  // namespace plait
