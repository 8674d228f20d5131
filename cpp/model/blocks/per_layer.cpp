#include "model/blocks/per_layer.h"

#include <cmath>

namespace plait {
namespace {

float root(int64_t n) { return std::sqrt(static_cast<float>(n)); }

}  // namespace

PerLayerEmbedding::PerLayerEmbedding(const Hparams& hp, const Weights& w, const ModelInfo& info)
    : size_(hp.count("embedding_length_per_layer_input")) {
    const int64_t all = int64_t{info.n_layers} * size_;
    table_ = w.get("per_layer_token_embd.weight", {info.n_vocab, all});
    projection_ = w.get("per_layer_model_proj.weight", {all, info.width});
    projected_ = read_norm(w, "per_layer_proj_norm", size_);
    for (int i = 0; i < info.n_layers; ++i) {
        const LayerWeights l(w, i);
        layers_.push_back({.gate = l.get("inp_gate.weight", {size_, info.width}),
                           .out = l.get("proj.weight", {info.width, size_}),
                           .after = read_norm(l, "post_norm", info.width)});
    }
}

Value PerLayerEmbedding::vectors(Step& step, Value x, const Norm& norm) const {
    const Value own = scale(step.embed_again(table_), root(size_));
    const Value projected =
        scale(linear(x, step.weight(projection_)), 1.0f / root(projection_.type.shape[1]));
    const auto n_layers = static_cast<int>(layers_.size());
    const Value normal = normalize(step, split_heads(projected, n_layers), projected_, norm);
    return scale(merge_heads(normal) + own, 1.0f / root(2));
}

Value PerLayerEmbedding::operator()(Step& step, int layer, Value x, Value vectors,
                                    const Norm& norm) const {
    const Layer& w = layers_[static_cast<size_t>(layer)];
    const Value own = slice(vectors, int64_t{layer} * size_, size_);
    const Value g = linear(x, step.weight(w.gate));
    const Value y = linear(gate(g, own, Activation::gelu_tanh), step.weight(w.out));
    return normalize(step, y, w.after, norm);
}

}  // namespace plait
