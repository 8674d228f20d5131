#include "model/blocks/norm.h"

#include <string>

namespace plait {

Norm Norm::rms(const Hparams& hp) {
    return {NormKind::rms, hp.positive("attention.layer_norm_rms_epsilon")};
}

Norm Norm::layer(const Hparams& hp) {
    return {NormKind::layer, hp.positive("attention.layer_norm_epsilon")};
}

namespace {

template <typename Tensors>
NormWeights read(const Tensors& w, std::string_view name, int64_t width) {
    const std::string bare(name);
    const std::string weight = w.has(bare) ? bare : bare + ".weight";
    return {w.get(weight, {width}), w.find(bare + ".bias", {width}), true};
}

}  // namespace

NormWeights read_norm(const LayerWeights& w, std::string_view name, int64_t width) {
    return read(w, name, width);
}

NormWeights read_norm(const Weights& w, std::string_view name, int64_t width) {
    return read(w, name, width);
}

NormWeights read_norm(const LayerWeights& w, std::string_view name, int64_t width,
                      const Norm& how) {
    return how.has_weights ? read(w, name, width) : NormWeights{.applies = true};
}

NormWeights read_norm(const Weights& w, std::string_view name, int64_t width, const Norm& how) {
    return how.has_weights ? read(w, name, width) : NormWeights{.applies = true};
}

Value normalize(Step& step, Value x, const NormWeights& w, const Norm& how) {
    if (how.kind == NormKind::layer)
        return layer_norm(x, step.weight(w.weight), step.weight(w.bias), how.epsilon);
    const Value y = rms_norm(x, step.weight(w.weight), how.epsilon);
    return w.bias ? y + step.weight(w.bias) : y;
}

}  // namespace plait
