// T5. Raffel et al. 2019, arXiv:1910.10683; gates of T5 1.1: arXiv:2002.05202. An encoder whose output
// the decoder attends to; no position but a bias on distance, learned by bucket, that all layers of
// a stack share. Scores are not scaled.
//
//   x += Wo . attend(Wq . n(x), Wk . n(x), Wv . n(x), B)                            n = RMSNorm
//   x += Wo' . attend(Wq' . n(x), Wk' e, Wv' e)            decoder; e: what the encoder gave, n'd
//   x += Wdown . relu(Wup . n(x)), or Wdown . (gelu(Wgate . n(x)) * Wup . n(x))
//
// Of the memory's layers the decoder's come first, then the encoder's, which store nothing. The
// first T5 scales what it multiplies with a tied embedding by width^-1/2; files do not say so and
// llama.cpp does not: logits are larger then, in the same order.
#include <string>

#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/model.h"

namespace plait {
namespace {

constexpr int kMaxDistance = 128;     // of buckets; no T5 has another
constexpr int kSelf = 0, kCross = 1;  // slots of a decoder's layer

struct T5Layer {
    NormWeights attn_norm, cross_norm, ffn_norm;
    AttentionWeights attn, cross;
    FeedForwardWeights ffn;
};

// One of the two: its layers, and what they share.
struct Stack {
    std::vector<T5Layer> layers;
    Weight bias;  // [buckets, h]
    NormWeights output_norm;
};

AttentionWeights read_projections(const LayerWeights& w, const std::string& name, int width,
                                  const Heads& heads) {
    const int64_t n = int64_t{heads.n_heads} * heads.head_dim;
    AttentionWeights a;
    a.wq = w.get(name + "_q.weight", {n, width});
    a.wk = w.get(name + "_k.weight", {n, width});
    a.wv = w.get(name + "_v.weight", {n, width});
    a.wo = w.get(name + "_o.weight", {width, n});
    return a;
}

Stack read_stack(const Hparams& hp, const Weights& w, const std::string& name, int n_layers,
                 int width, const Heads& heads) {
    const bool decodes = name == "dec";
    const int n_ffn = hp.count("feed_forward_length");
    const int n_buckets = hp.count("attention.relative_buckets_count");
    if (n_buckets < 4 || n_buckets % 4 != 0)  // halved by direction, and half of these exact
        hp.refuse("attention.relative_buckets_count",
                  "expected a multiple of 4, got " + std::to_string(n_buckets));
    Stack stack;
    stack.bias = w.get(name + ".blk.0.attn_rel_b.weight", {n_buckets, heads.n_heads});
    stack.output_norm = read_norm(w, name + ".output_norm", width);
    for (int i = 0; i < n_layers; ++i) {
        const LayerWeights l(w, name, i);
        T5Layer& layer = stack.layers.emplace_back();
        layer.attn_norm = read_norm(l, "attn_norm", width);
        layer.attn = read_projections(l, "attn", width, heads);
        if (decodes) layer.cross_norm = read_norm(l, "cross_attn_norm", width);
        if (decodes) layer.cross = read_projections(l, "cross_attn", width, heads);
        layer.ffn_norm = read_norm(l, "ffn_norm", width);
        layer.ffn = read_feed_forward(
            l, width, n_ffn, l.has("ffn_gate.weight") ? FeedForward::gated : FeedForward::plain);
    }
    return stack;
}

class T5 final : public Model {
public:
    T5(const Hparams& hp, const Weights& w)
        : Model(t5_info(hp, w)),
          norm_(Norm::rms(hp)),
          heads_(read_heads(hp, info().width, 0)),
          embedding_(w.get("token_embd.weight", {info().n_vocab, info().width})),
          output_(w.find("output.weight", {info().n_vocab, info().width})),
          encoder_(read_stack(hp, w, "enc", hp.count("block_count", Hparams::kMaxLayers),
                              info().width, heads_)),
          decoder_(read_stack(hp, w, "dec", info().n_layers, info().width, heads_)) {
        if (!output_) output_ = embedding_;
        if (heads_.n_kv_heads != heads_.n_heads)
            hp.refuse("attention.head_count_kv", "expected as many as attention.head_count");
    }

    MemorySpecs memory_specs() const override {
        const CrossSpec cross{heads_.n_kv_heads, heads_.head_dim, heads_.head_dim};
        MemorySpecs specs(decoder_.layers.size(), {attention_spec(decoder_attention()), cross});
        specs.insert(specs.end(), encoder_.layers.size(), {attention_spec(encoder_attention())});
        return specs;
    }

protected:
    void build_encoder(Step& step) const override {
        const AttentionForm form = encoder_attention();
        Value x = step.embed(embedding_);
        int at = static_cast<int>(decoder_.layers.size());  // in the memory
        for (const T5Layer& w : encoder_.layers) {
            const Value h = step.name(normalize(step, x, w.attn_norm, norm_), Role::attn_norm, at);
            x = x + attention(step, at, h, w.attn, form, norm_);
            x = step.name(feed(step, at, x, w), Role::l_out, at);
            ++at;
        }
        x = normalize(step, x, encoder_.output_norm, norm_);
        for (size_t i = 0; i < decoder_.layers.size(); ++i) {
            const AttentionWeights& w = decoder_.layers[i].cross;
            step.store_cross(static_cast<int>(i), kCross, linear(x, step.weight(w.wk)),
                             linear(x, step.weight(w.wv)));
        }
        step.emit_hidden(step.keep_outputs(x));
    }

    void build_decoder(Step& step) const override {
        const AttentionForm form = decoder_attention();
        Value x = step.embed(embedding_);
        int i = 0;
        for (const T5Layer& w : decoder_.layers) {
            const Value h = step.name(normalize(step, x, w.attn_norm, norm_), Role::attn_norm, i);
            x = x + attention(step, i, h, w.attn, form, norm_);
            x = x + cross_attention(step, i, x, w);
            x = step.name(feed(step, i, x, w), Role::l_out, i);
            ++i;
        }
        x = normalize(step, step.keep_outputs(x), decoder_.output_norm, norm_);
        step.emit_hidden(x);
        if (step.wants_logits()) step.emit_logits(linear(x, step.weight(output_)));
    }

private:
    static ModelInfo t5_info(const Hparams& hp, const Weights& w) {
        ModelInfo info = read_info(hp, w);
        info.has_encoder = true;
        info.n_layers = hp.count("decoder_block_count", Hparams::kMaxLayers, info.n_layers);
        if (w.has("dec.blk." + std::to_string(info.n_layers) + ".attn_norm.weight"))
            hp.refuse("decoder_block_count", "the file has more layers");
        return info;
    }

    AttentionForm encoder_attention() const {
        return {
            .heads = heads_,
            .within = true,
            .how = {.bias = encoder_.bias, .max_distance = kMaxDistance, .both_directions = true}};
    }
    AttentionForm decoder_attention() const {
        return {.heads = heads_,
                .how = {.bias = decoder_.bias, .max_distance = kMaxDistance, .slot = kSelf}};
    }

    Value cross_attention(Step& step, int i, Value x, const T5Layer& w) const {
        const Value h = normalize(step, x, w.cross_norm, norm_);
        const Value q = split_heads(linear(h, step.weight(w.cross.wq)), heads_.n_heads);
        const Value y = merge_heads(step.attend_cross(i, q, {.slot = kCross}));
        return linear(y, step.weight(w.cross.wo));
    }

    Value feed(Step& step, int i, Value x, const T5Layer& w) const {
        step.name(x, Role::ffn_inp, i);
        const Value n = step.name(normalize(step, x, w.ffn_norm, norm_), Role::ffn_norm, i);
        const Activation how = w.ffn.gate ? Activation::gelu_tanh : Activation::relu;
        return x + feed_forward(step, i, n, w.ffn, how);
    }

    Norm norm_;
    Heads heads_;
    Weight embedding_, output_;  // [vocab, width]
    Stack encoder_, decoder_;
};

}  // namespace

std::unique_ptr<Model> make_t5(const Hparams& hparams, const Weights& weights) {
    return std::make_unique<T5>(hparams, weights);
}

}  // namespace plait
