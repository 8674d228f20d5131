#include "model/transformer.h"

#include <algorithm>

#include "base/text.h"

namespace plait {
namespace {

std::vector<AttentionForm> read_attention_forms(const ModelInfo& info, const Hparams& hp,
                                                RopePairs pairs, const AttentionForm& common) {
    std::vector<AttentionForm> forms(static_cast<size_t>(info.n_layers), common);
    for (int i = 0; i < info.n_layers; ++i) {
        AttentionForm& form = forms[static_cast<size_t>(i)];
        form.heads = read_heads(hp, info.width, i);
        if (form.heads.n_kv_heads == 0) continue;
        form.rotation.rope = read_rope(hp, form.heads.head_dim, pairs);
        form.how.scale = read_attention_scale(hp, form.heads.head_dim);
    }
    return forms;
}

}  // namespace

ModelForm::ModelForm(ModelInfo given, const Norm& norm_of_model)
    : info(std::move(given)), norm(norm_of_model), attention(static_cast<size_t>(info.n_layers)) {}

ModelForm::ModelForm(ModelInfo given, const Hparams& hp, const Norm& norm_of_model, RopePairs pairs,
                     const AttentionForm& common)
    : info(std::move(given)),
      norm(norm_of_model),
      attention(read_attention_forms(info, hp, pairs, common)) {
    for (const AttentionForm& form : attention)
        if (form.heads.n_kv_heads == 0)
            hp.refuse("attention.head_count", "expected at least one head");
}

ModelForm::ModelForm(const Hparams& hp, const Weights& w, const Norm& norm_of_model,
                     RopePairs pairs, const AttentionForm& common)
    : ModelForm(read_info(hp, w), hp, norm_of_model, pairs, common) {}

ModelForm ModelForm::hybrid(const Hparams& hp, const Weights& w, const Norm& norm, RopePairs pairs,
                            const AttentionForm& common) {
    ModelForm form(read_info(hp, w), norm);
    form.attention = read_attention_forms(form.info, hp, pairs, common);
    return form;
}

void ModelForm::add_drafting_layers(const Hparams& hp, const Weights& w) {
    const int n = hp.index("nextn_predict_layers", Hparams::kMaxLayers, 0);
    for (int i = 0; i < n; ++i)
        if (!w.has(text("blk.", info.n_layers + i, ".nextn.eh_proj.weight"))) return;
    info.n_drafting = n;
    const auto n_all = static_cast<size_t>(info.n_all_layers());
    const auto last =
        std::find_if(attention.rbegin(), attention.rend(),
                     [](const AttentionForm& layer) { return layer.heads.n_kv_heads > 0; });
    attention.resize(n_all, last == attention.rend() ? AttentionForm{} : *last);
    if (!mixture.layers.empty()) mixture.layers.resize(n_all, mixture.layers.back());
}

void ModelForm::set_windows(const std::vector<Window>& windows) {
    for (size_t i = 0; i < attention.size(); ++i) attention[i].window = windows[i];
}

void ModelForm::share_keys(int n, const Hparams& hp) {
    const size_t n_owners = attention.size() - static_cast<size_t>(n);
    for (size_t i = n_owners; i < attention.size(); ++i) {
        AttentionForm& layer = attention[i];
        for (size_t j = n_owners; j-- > 0 && layer.owner < 0;)
            if (attention[j].window == layer.window) layer.owner = static_cast<int>(j);
        if (layer.owner < 0)
            hp.refuse("attention.shared_kv_layers",
                      text("layer ", i, " must read the keys of one of the first ", n_owners,
                           " layers, but none of them has the same window"));
        const Heads& owner = attention[static_cast<size_t>(layer.owner)].heads;
        if (owner.n_kv_heads != layer.heads.n_kv_heads || owner.head_dim != layer.heads.head_dim)
            hp.refuse("attention.head_count_kv",
                      text("layer ", i, " reads the keys of layer ", layer.owner,
                           ", whose heads have other sizes"));
    }
}

Transformer::Transformer(const Hparams& hp, const Weights& w, ModelForm form)
    : Model(form.info), form_(std::move(form)) {
    const int width = info().width;
    embedding_ = w.get("token_embd.weight", {info().n_vocab, width});
    if (info().n_positions > 0)
        position_embedding_ = w.get("position_embd.weight", {info().n_positions, width});
    if (form_.has_embedding_norm) embedding_norm_ = read_norm(w, "token_embd_norm", width);
    if (!form_.output_norm.empty())
        output_norm_ = read_norm(w, form_.output_norm, width, form_.norm);
    for (int i = 0; i < info().n_all_layers(); ++i)
        layers_.push_back(read_layer(hp, LayerWeights(w, i), i));
}

Transformer::Layer Transformer::read_layer(const Hparams& hp, const LayerWeights& w, int i) const {
    const int width = info().width;
    Layer layer;
    const auto read = [&](NormWeights& norm, std::string_view name) {
        if (!name.empty()) norm = read_norm(w, name, width, form_.norm);
    };
    LayerNorms names = form_.norms;
    if (i == 0 && form_.first_norm_is_optional && !w.has(std::string(names.mixer_in) + ".weight"))
        names.mixer_in = {};
    read(layer.mixer_in, names.mixer_in);
    read(layer.mixer_out, names.mixer_out);
    read(layer.mixer_sum, names.mixer_sum);
    read(layer.block_in, names.block_in);
    read(layer.block_out, names.block_out);
    read(layer.block_sum, names.block_sum);
    if (attends(i)) layer.attention = read_attention(w, width, attention_form(i));
    if (form_.mixture.at(i)) {
        layer.experts = read_experts(w, width, form_.mixture);
        if (form_.mixture.n_shared_ffn > 0)
            layer.shared = read_shared_expert(w, width, form_.mixture);
    } else if (form_.feed_forward != FeedForward::none &&
               form_.feed_forward != FeedForward::custom) {
        const int n_ffn = hp.per_layer("feed_forward_length", i + 1, 1, Hparams::kMaxSize).back();
        layer.feed_forward = read_feed_forward(w, width, n_ffn, form_.feed_forward);
    }
    return layer;
}

std::vector<StateSpec> Transformer::layer_memory(int i) const {
    return attention_memory(attention_form(i));
}

MemorySpecs Transformer::memory_specs() const {
    MemorySpecs specs;
    for (int i = 0; i < info().n_all_layers(); ++i) specs.push_back(layer_memory(i));
    return specs;
}

Model::KeyRotation Transformer::key_rotation(int i, const BuildOptions& options) const {
    const Rotation& rotation = attention_form(i).rotation;
    return {rotation.rope, rotation.factors_for(options.n_ctx)};
}

Value Transformer::embed(Step& step) const {
    const float factor = form_.embedding_scale;
    Value x = step.embed(embedding_, form_.scales_given_embeddings ? 1.0f : factor);
    if (form_.scales_given_embeddings && factor != 1.0f)
        x = step.name(scale(x, factor), Role::inp_embd);
    if (token_types_) x = x + weight_row(step.weight(token_types_), 0);
    if (position_embedding_)
        x = x + plait::embed(step.weight(position_embedding_), step.positions());
    return embedding_norm_.applies ? normalize(step, x, embedding_norm_) : x;
}

Value Transformer::layers(Step& step, Value x) const {
    for (const int i : step.layer_numbers(info().n_layers))
        x = step.name(layer(step, i, x), Role::l_out, i);
    return x;
}

Value Transformer::normalize_named(Step& step, Value x, const NormWeights& w, Role role,
                                   int i) const {
    return w.applies ? step.name(normalize(step, x, w), role, i) : x;
}

// Returns the residual stream after adding y.
Value Transformer::residual(Step& step, Value x, Value y, const NormWeights& out,
                            const NormWeights& sum) const {
    if (out.applies) y = normalize(step, y, out);
    if (form_.residual_scale != 1.0f) y = scale(y, form_.residual_scale);
    return sum.applies ? normalize(step, x + y, sum) : x + y;
}

Value Transformer::layer(Step& step, int i, Value x) const {
    const Layer& w = weights(i);
    const Value h = normalize_named(step, x, w.mixer_in, Role::attn_norm, i);
    const Value sum = residual(step, x, mixer(step, i, h), w.mixer_out, w.mixer_sum);
    if (form_.feed_forward == FeedForward::none) return sum;
    step.name(sum, Role::ffn_inp, i);
    const Value input = !form_.parallel ? sum : w.block_in.applies ? x : h;
    const Value n = normalize_named(step, input, w.block_in, Role::ffn_norm, i);
    return residual(step, sum, block(step, i, n), w.block_out, w.block_sum);
}

Value Transformer::mixer(Step& step, int i, Value h) const {
    return attention(step, i, h, weights(i).attention, attention_form(i), form_.norm);
}

Value Transformer::block(Step& step, int i, Value h) const {
    const Layer& w = weights(i);
    if (!form_.mixture.at(i)) return feed_forward(step, i, h, w.feed_forward, form_.activation);
    const Value chosen = experts(step, i, h, w.experts, form_.mixture, form_.activation);
    if (form_.mixture.n_shared_ffn == 0) return chosen;
    return chosen + shared_expert(step, i, h, w.shared, form_.activation);
}

}  // namespace plait
