#include "model/vision/tower.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/text.h"
#include "model/step.h"

namespace plait {
namespace {

ModelInfo info_of(const TowerForm& form) {
    const int64_t n_pixels = int64_t{3} * form.patch_size * form.patch_size;
    ModelInfo info;
    info.arch = "clip";
    info.n_layers = form.n_layers;
    info.width = form.width * (1 + static_cast<int>(form.taps.size()));
    info.given_width = static_cast<int>(n_pixels) + (form.n_positions > 0 ? form.width : 0);
    info.n_pos_per_token = 4;
    info.causal = false;
    info.has_decoder = false;
    return info;
}

// Some converters exchanged the names of the two matrices.
bool is_swapped(const Weights& all, const std::string& prefix, int width) {
    const gguf::TensorInfo* up = all.file().find(prefix + "ffn_up.weight");
    return up != nullptr && up->type.shape.rank == 2 && up->type.shape[0] == width &&
           up->type.shape[1] != width;
}

}  // namespace

TowerForm read_tower_form(const Hparams& hp, const Weights& w, NormKind norm) {
    constexpr int kMaxPatch = 256;
    TowerForm form;
    form.width = hp.count("vision.embedding_length", 1 << 20);
    form.n_layers = hp.count("vision.block_count", Hparams::kMaxLayers);
    form.n_heads = hp.count("vision.attention.head_count");
    if (form.width % form.n_heads != 0)
        hp.refuse("vision.attention.head_count",
                  text(form.n_heads, " does not divide the width ", form.width));
    form.patch_size = hp.count("vision.patch_size", kMaxPatch);
    form.norm = {norm, hp.positive("vision.attention.layer_norm_epsilon")};
    const bool gelu = hp.flag("use_gelu", false);
    const bool silu = hp.flag("use_silu", false);
    if (gelu && silu) hp.refuse("use_silu", "expected false, because use_gelu is true");
    form.activation = gelu   ? TowerActivation::gelu_tanh
                      : silu ? TowerActivation::silu
                             : TowerActivation::quick_gelu;
    form.n_positions = w.rows("v.position_embd.weight");
    form.has_class_token = w.has("v.class_embd");
    form.two_frames = w.has("v.patch_embd.weight.1");
    if (w.has(text("v.blk.", form.n_layers, ".ln1.weight")))
        hp.refuse("vision.block_count",
                  text("is ", form.n_layers, ", but the file has more layers"));
    return form;
}

Tower::Tower(const Weights& w, TowerForm form) : Model(info_of(form)), form_(std::move(form)) {
    const int64_t width = form_.width;
    const Shape kernel{width, 3, form_.patch_size, form_.patch_size};
    const Shape matrix{width, n_pixels()};
    patch_ = w.get_as("v.patch_embd.weight", kernel, matrix);
    if (form_.two_frames) second_frame_ = w.get_as("v.patch_embd.weight.1", kernel, matrix);
    patch_bias_ = w.find("v.patch_embd.bias", {width});
    // The caller reads these and adds them up.
    if (form_.n_positions > 0) w.get("v.position_embd.weight", {form_.n_positions, width});
    if (form_.has_class_token) w.get("v.class_embd", {width});
    if (w.has("v.pre_ln.weight")) input_norm_ = read_norm(w, "v.pre_ln", width);
    if (!form_.output_norm.empty()) output_norm_ = read_norm(w, form_.output_norm, width);
    for (int i = 0; i < form_.n_layers; ++i) layers_.push_back(read_layer(w, i));
}

Tower::Layer Tower::read_layer(const Weights& all, int i) const {
    const LayerWeights w(all, "v", i);
    const std::string prefix = text("v.blk.", i, ".");
    const int64_t width = form_.width;
    const Shape square{width, width};
    Layer layer{.attn_norm = read_norm(w, "ln1", width), .ffn_norm = read_norm(w, "ln2", width)};
    if (w.has("attn_qkv.weight")) {
        layer.qkv = w.get("attn_qkv.weight", {3 * width, width});
        layer.qkv_bias = w.find("attn_qkv.bias", {3 * width});
    } else {
        layer.q = w.get("attn_q.weight", square);
        layer.k = w.get("attn_k.weight", square);
        layer.v = w.get("attn_v.weight", square);
        layer.q_bias = w.find("attn_q.bias", {width});
        layer.k_bias = w.find("attn_k.bias", {width});
        layer.v_bias = w.find("attn_v.bias", {width});
    }
    layer.out = w.get("attn_out.weight", square);
    layer.out_bias = w.find("attn_out.bias", {width});

    const bool swapped = is_swapped(all, prefix, form_.width);
    const std::string up = swapped ? "ffn_down" : "ffn_up";
    const std::string down = swapped ? "ffn_up" : "ffn_down";
    const int64_t n_ffn = std::max<int64_t>(1, w.rows(up + ".weight"));
    if (form_.gated) {
        layer.gate = w.get("ffn_gate.weight", {n_ffn, width});
        layer.gate_bias = w.find("ffn_gate.bias", {n_ffn});
    }
    layer.up = w.get(up + ".weight", {n_ffn, width});
    layer.up_bias = w.find(up + ".bias", {n_ffn});
    layer.down = w.get(down + ".weight", {width, n_ffn});
    layer.down_bias = w.find(down + ".bias", {width});
    return layer;
}

MemorySpecs Tower::memory_specs() const {
    MemorySpecs specs;
    for (int i = 0; i < form_.n_layers; ++i) {
        const bool full = (i + 1) % form_.full_every == 0;
        // A symmetric window of one token: the patches with an equal first position.
        specs.push_back(
            {WithinSpec{.window = {full ? WindowKind::full : WindowKind::symmetric, 1}}});
    }
    return specs;
}

Value Tower::embed(Step& step) const {
    const Value given = step.given(info().given_width);
    const Value pixels = form_.n_positions > 0 ? slice(given, 0, n_pixels()) : given;
    Value x = linear(pixels, step.weight(patch_), step.weight(patch_bias_));
    if (form_.two_frames) x = x + linear(pixels, step.weight(second_frame_));
    if (form_.n_positions > 0) x = x + slice(given, n_pixels(), form_.width);
    return input_norm_.applies ? normalize(step, x, input_norm_, form_.norm) : x;
}

// The order of the elements of a head does not matter, as long as queries and keys have the same.
Value Tower::rotate(Step& step, Value x) const {
    if (form_.pairs == RopePairs::none) return x;
    const int half = form_.width / form_.n_heads / 2;
    const int quarter = half / 2;
    const auto part = [&](int i) {
        if (form_.pairs == RopePairs::neighbours) return slice(x, i * half, half);
        return concat(slice(x, i * quarter, quarter), slice(x, half + i * quarter, quarter));
    };
    Rope rope{.n_rot = half, .interleaved = form_.pairs == RopePairs::neighbours};
    rope.sections[1] = quarter;
    const Value by_row = step.rotate(part(0), rope);
    rope.sections[1] = 0;
    rope.sections[2] = quarter;
    rope.scale = form_.column_scale;
    return concat(by_row, step.rotate(part(1), rope));
}

Value Tower::attend(Step& step, int i, Value x) const {
    const Layer& w = layers_[static_cast<size_t>(i)];
    Value q, k, v;
    if (w.qkv) {
        const Value all = linear(x, step.weight(w.qkv), step.weight(w.qkv_bias));
        q = slice(all, 0, form_.width);
        k = slice(all, form_.width, form_.width);
        v = slice(all, int64_t{2} * form_.width, form_.width);
    } else {
        q = linear(x, step.weight(w.q), step.weight(w.q_bias));
        k = linear(x, step.weight(w.k), step.weight(w.k_bias));
        v = linear(x, step.weight(w.v), step.weight(w.v_bias));
    }
    const int n = form_.n_heads;
    const auto head_dim = static_cast<float>(form_.width / n);
    const Value y =
        step.attend_within(i, rotate(step, split_heads(q, n)), rotate(step, split_heads(k, n)),
                           split_heads(v, n), {.scale = 1.0f / std::sqrt(head_dim)});
    return linear(merge_heads(y), step.weight(w.out), step.weight(w.out_bias));
}

Value Tower::feed_forward(Step& step, const Layer& w, Value x) const {
    const auto apply = [&](Value y) {
        switch (form_.activation) {
        case TowerActivation::gelu: return activate(y, Activation::gelu);
        case TowerActivation::gelu_tanh: return activate(y, Activation::gelu_tanh);
        case TowerActivation::silu: return activate(y, Activation::silu);
        case TowerActivation::quick_gelu: break;
        }
        return gate(scale(y, 1.702f), y, Activation::sigmoid);
    };
    const Value up = linear(x, step.weight(w.up), step.weight(w.up_bias));
    const Value h =
        w.gate ? apply(linear(x, step.weight(w.gate), step.weight(w.gate_bias))) * up : apply(up);
    return linear(h, step.weight(w.down), step.weight(w.down_bias));
}

void Tower::build_decoder(Step& step) const {
    Value x = embed(step);
    std::vector<Value> taps;
    for (int i = 0; i < form_.n_layers; ++i) {
        const Layer& w = layers_[static_cast<size_t>(i)];
        x = x + attend(step, i, normalize(step, x, w.attn_norm, form_.norm));
        x = x + feed_forward(step, w, normalize(step, x, w.ffn_norm, form_.norm));
        step.name(x, Role::l_out, i);
        if (std::ranges::find(form_.taps, i) != form_.taps.end()) taps.push_back(x);
    }
    if (output_norm_.applies) x = normalize(step, x, output_norm_, form_.norm);
    for (const Value& tap : taps) x = concat(x, tap);
    step.emit_hidden(step.keep_outputs(x));
}

}  // namespace plait
