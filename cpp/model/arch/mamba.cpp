// Mamba. Gu & Dao 2023, arXiv:2312.00752; and FalconMamba, Zuo et al. 2024, arXiv:2410.05355, which
// normalises dt, b and c.
//
//   x += Wout . (silu(z) * scan(u, dt, a, b, c, d))         u, z = Win . n(x), n = RMSNorm
//
// with u convolved along its sequence; see blocks/mamba.h.
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights norm;
    MambaWeights mixer;
};

class Mamba final : public Decoder {
public:
    Mamba(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)), sizes_(read_ssm_sizes(hp)) {
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "attn_norm", info().width), read_mamba(l, hp, info().width, sizes_)});
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {mamba_spec(sizes_)});
    }

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.norm), Role::attn_norm, i);
        return x + mamba(step, i, 0, h, w.mixer, sizes_, norm_);
    }

private:
    SsmSizes sizes_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_mamba(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Mamba>(hparams, weights);
}

}  // namespace plait
