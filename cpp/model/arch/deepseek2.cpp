// DeepSeek-V2, arXiv:2405.04434, and V3, arXiv:2412.19437: attention over one latent vector a token,
// and experts beside those that every token visits; the first layers have a plain block.
//
//   x += latent_attention(n(x))                                     n = RMSNorm
//   x += sum_e p_e f_e(n(x)) + f_shared(n(x))      f(n) = Wdown . (silu(Wgate . n) * Wup . n)
//
//   e: the largest of p + bias within the best groups of neighbours
//   p: softmax or sigmoid of Wrouter . n(x), perhaps made to sum to one, times a factor
#include "model/blocks/experts.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/latent_attention.h"
#include "model/decoder.h"

namespace plait {
namespace {

struct Layer {
    NormWeights attn_norm, ffn_norm;
    LatentWeights attn;
    FeedForwardWeights ffn;  // of the first layers, which have nothing of the rest
    ExpertWeights experts;
    SharedExpertWeights shared;
};

class DeepSeek2 final : public Decoder {
public:
    DeepSeek2(const Hparams& hp, const Weights& w)
        : Decoder(hp, w, Norm::rms(hp)), attention_(read_latent_attention(hp)) {
        const int width = info().width;
        const int n_dense = hp.index("leading_dense_block_count", Hparams::kMostLayers, 0);
        for (int i = 0; i < info().n_layers; ++i) {
            const LayerWeights l(w, i);
            Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_latent_weights(l, width, attention_);
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            if (i < n_dense) {
                layer.ffn = read_feed_forward(l, width, hp.count("feed_forward_length"));
                continue;
            }
            const ExpertCounts counts = read_expert_counts(hp, 1);
            const int n_ffn = hp.count("expert_feed_forward_length");
            routing_ = read_routing(hp, counts);
            layer.experts = read_experts(l, width, n_ffn, counts);
            const int n_shared = hp.count("expert_shared_count", Hparams::kMost / n_ffn);
            layer.shared = read_shared_expert(l, width, n_shared * n_ffn);
        }
    }

    MemorySpecs memory_specs() const override {
        return MemorySpecs(layers_.size(), {latent_attention_spec(attention_)});
    }

protected:
    KeyRotation key_rotation(int, const BuildOptions&) const override {
        return {attention_.rope, {}, attention_.rotated_from()};
    }

    Value layer(Step& step, int i, Value x) const override {
        const Layer& w = layers_[static_cast<size_t>(i)];
        const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
        x = step.name(x + latent_attention(step, i, h, w.attn, attention_, norm_), Role::ffn_inp,
                      i);
        const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
        if (!w.experts.router) return x + feed_forward(step, i, n, w.ffn, Activation::silu);
        const Value chosen = experts(step, i, n, w.experts, routing_, Activation::silu);
        return x + (chosen + shared_expert(step, i, n, w.shared, Activation::silu));
    }

private:
    LatentAttention attention_;
    RouteParams routing_{};
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<Model> make_deepseek2(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<DeepSeek2>(hparams, weights);
}

}  // namespace plait
