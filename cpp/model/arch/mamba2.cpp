// Mamba-2. Dao & Gu 2024, arXiv:2405.21060: one decay for a whole head, heads in groups that share
// b and c.
//
//   x += Wout . n_g(silu(z) * scan(u, dt, a, b, c, d))     z, u, b, c, dt = Win . n(x), n = RMSNorm
//
// with u, b and c convolved along their sequence; see blocks/mamba.h.
#include "model/blocks/mamba.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights norm;
    Mamba2Weights mixer;
};

class Mamba2 final : public Decoder {
public:
    Mamba2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)), sizes_(read_grouped_ssm_sizes(hp)) {
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            layers_.push_back(
                {read_norm(l, "attn_norm", info().width), read_mamba2(l, info().width, sizes_)});
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {mamba2_spec(sizes_)});
    }

protected:
    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.norm), Role::attn_norm, i);
        return x + mamba2(step, i, 0, h, w.mixer, sizes_, norm_);
    }

private:
    SsmSizes sizes_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_mamba2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<Mamba2>(hparams, weights);
}

}  // namespace plait
