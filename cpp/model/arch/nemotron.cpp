// Nemotron and Minitron. Parmar et al. 2024, arXiv:2402.16819: rotation of a part of each head, and a
// squared ReLU without a gate. Files store the norms' weights with the 1 added that the paper adds.
//
//   x += Wo attend(rope(Wq n(x)), rope(Wk n(x)), Wv n(x))          n = LayerNorm
//   x += Wdown relu(Wup n(x))^2
#include "model/decoder.h"

namespace plait {

std::unique_ptr<Model> make_nemotron(const Hparams& hp, const Weights& w) {
    ModelForm form(hp, w, Norm::layer(hp), RopePairs::halves);
    form.feed_forward = FeedForward::plain;
    form.activation = Activation::relu_squared;
    return std::make_unique<Decoder>(hp, w, std::move(form));
}

}  // namespace plait
