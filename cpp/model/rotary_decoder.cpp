#include "model/rotary_decoder.h"

namespace plait {

RotaryDecoder::RotaryDecoder(const Hparams& hp, const Weights& w, const Norm& norm,
                             bool interleaved, QkNorm qk_norm)
    : RotaryDecoder(read_info(hp, w), hp, w, norm, interleaved, qk_norm) {}

RotaryDecoder::RotaryDecoder(ModelInfo info, const Hparams& hp, const Weights& w, const Norm& norm,
                             bool interleaved, QkNorm qk_norm)
    : Decoder(std::move(info), w, norm) {
    const int width = this->info().width;
    heads_ = read_heads(hp, width);
    rope_ = read_rope(hp, heads_.head_dim, interleaved);
    attention_.scale = attention_scale(hp, heads_.head_dim);
    for (int i = 0; i < this->info().n_layers; ++i) {
        const LayerWeights l(w, i);
        attention_layers_.push_back({read_norm(l, "attn_norm", width),
                                     read_norm(l, "ffn_norm", width),
                                     read_attention(l, width, heads_, qk_norm)});
    }
}

MemorySpecs RotaryDecoder::memory_specs() const {
    return MemorySpecs(attention_layers_.size(), {attention_spec(heads_, rope_)});
}

Model::KeyRotation RotaryDecoder::key_rotation(int, const BuildOptions&) const {
    return {rope_, rope_factors_};
}

Value RotaryDecoder::layer(Step& step, int i, Value x) const {
    const AttentionLayer& w = attention_layers_[static_cast<size_t>(i)];
    const Value h = step.name(normalize(step, x, w.attn_norm), Role::attn_norm, i);
    const Qkv qkv = project_qkv(step, i, h, w.attn, heads_, norm_);
    const Value y = rotates(i) ? rotary_attention(step, i, qkv, rope_, rope_factors_, attention_)
                               : attention(step, i, qkv, attention_);
    x = step.name(x + project_out(step, i, y, w.attn), Role::ffn_inp, i);
    const Value n = step.name(normalize(step, x, w.ffn_norm), Role::ffn_norm, i);
    return x + block(step, i, n);
}

}  // namespace plait
