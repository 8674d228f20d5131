// T5. Raffel et al. 2019, arXiv:1910.10683; gates of T5 1.1: arXiv:2002.05202. A learned bias per
// bucket of distances replaces positions. All layers of a stack share it. Scores are not scaled.
//
//   x += Wo attend(Wq n(x), Wk n(x), Wv n(x), B)                            n = RMSNorm
//   x += Wo' attend(Wq' n(x), Wk' e, Wv' e)            decoder; e: the normalised encoder output
//   x += Wdown relu(Wup n(x)), or Wdown (gelu(Wgate n(x)) * Wup n(x))
//
// The original T5, which has no separate output matrix, multiplies the input of the output matrix
// by width^-1/2. Files do not state this and llama.cpp does not do it, so plait does not either:
// its logits are larger by a constant factor.
#include <algorithm>
#include <string>

#include "base/text.h"
#include "model/blocks/attention.h"
#include "model/blocks/feed_forward.h"
#include "model/model.h"

namespace plait {
namespace {

constexpr int kSelf = 0, kCross = 1;  // slots of a decoder's layer

struct T5Layer {
    NormWeights attn_norm, cross_norm, ffn_norm;
    AttentionWeights attn, cross;  // cross_norm and cross: decoder only
    FeedForwardWeights ffn;
};

AttentionWeights read_projections(const LayerWeights& w, const std::string& name, int width,
                                  const Heads& heads) {
    AttentionWeights a;
    a.wq = w.get(name + "_q.weight", {heads.queries(), width});
    a.wk = w.get(name + "_k.weight", {heads.queries(), width});
    a.wv = w.get(name + "_v.weight", {heads.queries(), width});
    a.wo = w.get(name + "_o.weight", {width, heads.queries()});
    return a;
}

AttentionForm read_t5_attention(const Hparams& hp, const Weights& w, const std::string& stack,
                                int width) {
    constexpr int kMaxDistance = 128;  // max distance of the buckets of every T5 model
    const int n_buckets = hp.count("attention.relative_buckets_count");
    if (n_buckets < 4 ||
        n_buckets % 4 != 0)  // two directions, each with as many exact buckets as logarithmic ones
        hp.refuse("attention.relative_buckets_count",
                  "expected a multiple of 4, got " + std::to_string(n_buckets));
    AttentionForm form;
    form.heads = read_heads(hp, width, 0);
    if (form.heads.n_kv_heads != form.heads.n_heads)
        hp.refuse("attention.head_count_kv",
                  text("expected ", form.heads.n_heads,
                       ", the number of attention.head_count, got ", form.heads.n_kv_heads));
    form.within = stack == "enc";
    form.how.bias = w.get(stack + ".blk.0.attn_rel_b.weight", {n_buckets, form.heads.n_heads});
    form.how.max_distance = kMaxDistance;
    form.how.both_directions = form.within;
    form.how.slot = kSelf;
    return form;
}

// The encoder or the decoder. `first_layer` is its first layer in the memory.
class T5Stack {
public:
    T5Stack(const Hparams& hp, const Weights& w, const std::string& name, int n_layers, int width,
            int first_layer)
        : norm_(Norm::rms(hp)),
          attention_(read_t5_attention(hp, w, name, width)),
          output_norm_(read_norm(w, name + ".output_norm", width)),
          first_layer_(first_layer) {
        const int n_ffn = hp.count("feed_forward_length");
        for (int i = 0; i < n_layers; ++i) {
            const LayerWeights l(w, name, i);
            const bool gated = l.has("ffn_gate.weight");
            T5Layer& layer = layers_.emplace_back();
            layer.attn_norm = read_norm(l, "attn_norm", width);
            layer.attn = read_projections(l, "attn", width, attention_.heads);
            if (name == "dec") layer.cross_norm = read_norm(l, "cross_attn_norm", width);
            if (name == "dec") layer.cross = read_projections(l, "cross_attn", width, heads());
            layer.ffn_norm = read_norm(l, "ffn_norm", width);
            layer.ffn =
                read_feed_forward(l, width, n_ffn, gated ? FeedForward::gated : FeedForward::plain);
        }
    }

    const Heads& heads() const { return attention_.heads; }
    const std::vector<T5Layer>& layers() const { return layers_; }
    StateSpec spec() const { return attention_memory(attention_).front(); }

    // Returns x after these layers, before the output norm.
    Value operator()(Step& step, Value x, const LayerRange& range = {}) const {
        const int end = std::min(range.end, static_cast<int>(layers_.size()));
        for (int number = range.begin; number < end; ++number) {
            const T5Layer& w = layers_[static_cast<size_t>(number)];
            const int i = first_layer_ + number;
            const Value h = step.name(normalize(step, x, w.attn_norm, norm_), Role::attn_norm, i);
            x = x + attention(step, i, h, w.attn, attention_, norm_);
            if (w.cross.wq) x = x + cross_attention(step, i, x, w);
            step.name(x, Role::ffn_inp, i);
            const Value n = step.name(normalize(step, x, w.ffn_norm, norm_), Role::ffn_norm, i);
            const Activation act = w.ffn.gate ? Activation::gelu_tanh : Activation::relu;
            x = step.name(x + feed_forward(step, i, n, w.ffn, act), Role::l_out, i);
        }
        return x;
    }

    Value normalize_output(Step& step, Value x) const {
        return normalize(step, x, output_norm_, norm_);
    }

private:
    Value cross_attention(Step& step, int i, Value x, const T5Layer& w) const {
        const Value h = normalize(step, x, w.cross_norm, norm_);
        const Value q = split_heads(linear(h, step.weight(w.cross.wq)), heads().n_heads);
        const Value y = merge_heads(step.attend_cross(i, q, {.slot = kCross}));
        return linear(y, step.weight(w.cross.wo));
    }

    Norm norm_;
    AttentionForm attention_;
    NormWeights output_norm_;
    int first_layer_;
    std::vector<T5Layer> layers_;
};

// In the memory, the layers of the decoder come first. They are followed by those of the encoder,
// which store nothing.
class T5 final : public Model {
public:
    T5(const Hparams& hp, const Weights& w)
        : Model(t5_info(hp, w)),
          embedding_(w.get("token_embd.weight", {info().n_vocab, info().width})),
          output_(w.find("output.weight", {info().n_vocab, info().width})),
          encoder_(hp, w, "enc", hp.count("block_count", Hparams::kMaxLayers), info().width,
                   info().n_layers),
          decoder_(hp, w, "dec", info().n_layers, info().width, 0) {
        if (!output_) output_ = embedding_;
    }

    MemorySpecs memory_specs() const override {
        const Heads& heads = decoder_.heads();
        const CrossSpec cross{heads.n_kv_heads, heads.head_dim, heads.head_dim};
        MemorySpecs specs(decoder_.layers().size(), {decoder_.spec(), cross});
        specs.insert(specs.end(), encoder_.layers().size(), {encoder_.spec()});
        return specs;
    }

protected:
    void build_encoder(Step& step) const override {
        const Value x = encoder_.normalize_output(step, encoder_(step, step.embed(embedding_)));
        for (const int i : step.layer_numbers(info().n_layers)) {
            const AttentionWeights& w = decoder_.layers()[static_cast<size_t>(i)].cross;
            const auto heads = [&](const Weight& projection) {
                return split_heads(linear(x, step.weight(projection)), decoder_.heads().n_heads);
            };
            step.store_cross(i, kCross, heads(w.wk), heads(w.wv));
        }
        step.emit_hidden(step.keep_outputs(x));
    }

    void build_decoder(Step& step) const override {
        const bool has_first = step.layers().has_first();
        Value x = has_first ? step.embed(embedding_) : step.passed(info());
        x = step.keep_outputs(decoder_(step, x, step.layers()));
        if (!step.layers().has_last(info().n_layers)) return step.emit_passed(x);
        x = decoder_.normalize_output(step, x);
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

    Weight embedding_, output_;  // [vocab, width]
    T5Stack encoder_, decoder_;
};

// A model that has only the encoder.
class T5Encoder final : public Model {
public:
    T5Encoder(const Hparams& hp, const Weights& w)
        : Model(encoder_info(hp, w)),
          embedding_(w.get("token_embd.weight", {info().n_vocab, info().width})),
          encoder_(hp, w, "enc", info().n_layers, info().width, 0) {}

    MemorySpecs memory_specs() const override {
        return MemorySpecs(encoder_.layers().size(), {encoder_.spec()});
    }

protected:
    void build_decoder(Step& step) const override {
        const bool has_first = step.layers().has_first();
        Value x = has_first ? step.embed(embedding_) : step.passed(info());
        x = step.keep_outputs(encoder_(step, x, step.layers()));
        if (!step.layers().has_last(info().n_layers)) return step.emit_passed(x);
        step.emit_hidden(encoder_.normalize_output(step, x));
    }

private:
    static ModelInfo encoder_info(const Hparams& hp, const Weights& w) {
        ModelInfo info = read_info(hp, w);
        info.causal = false;
        info.has_decoder = false;
        return info;
    }

    Weight embedding_;  // [vocab, width]
    T5Stack encoder_;
};

}  // namespace

std::unique_ptr<Model> make_t5(const Hparams& hp, const Weights& w) {
    return std::make_unique<T5>(hp, w);
}

std::unique_ptr<Model> make_t5encoder(const Hparams& hp, const Weights& w) {
    return std::make_unique<T5Encoder>(hp, w);
}

}  // namespace plait
