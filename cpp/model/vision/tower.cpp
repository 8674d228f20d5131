#include "model/vision/tower.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "base/error.h"
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

// Reads the limits of a linear layer's inputs or outputs from "{name}_min" and "{name}_max".
Limits read_limits(const Weights& w, const std::string& name) {
    const auto number = [&](const char* end, float fallback) {
        const Weight weight = w.find(name + end, {1});
        if (!weight) return fallback;
        if (weight.type.dtype != DType::f32)
            throw ModelError(text(w.file().path(), ": ", name, end, ": expected F32"));
        float value = 0.0f;
        w.read(weight.id, 0, std::as_writable_bytes(std::span(&value, 1)));
        return value;
    };
    constexpr float kNone = std::numeric_limits<float>::max();
    const Limits limits{number("_min", -kNone), number("_max", kNone)};
    if (!(limits.high / 2 - limits.low / 2 > 0.0f))
        throw ModelError(text(w.file().path(), ": ", name, "_min: expected less than ", name,
                              "_max, got ", limits.low, " and ", limits.high));
    if (limits.low <= -kNone && limits.high >= kNone) return {};
    if (limits.low <= -kNone || limits.high >= kNone)
        throw UnsupportedError(text(w.file().path(), ": ", name,
                                    " is limited on one side only, which is not supported"));
    return limits;
}

Value limit(Value x, const Limits& limits) {
    if (!limits.apply()) return x;
    const float middle = limits.low / 2 + limits.high / 2;
    const float distance = limits.high / 2 - limits.low / 2;
    if (middle == 0.0f) return clamp(x, distance);
    return scale(clamp(scale(x, 1.0f, -middle), distance), 1.0f, middle);
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
    if (form_.n_positions > 0) {
        const int64_t n = form_.n_positions;
        w.get("v.position_embd.weight", form_.n_position_tables == 1
                                            ? Shape{n, width}
                                            : Shape{form_.n_position_tables, n, width});
    }
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
    const auto linear = [&](const std::string& name, const Shape& shape) {
        return read_linear(all, prefix + name, shape);
    };
    Layer layer{.attn_norm = read_norm(w, "ln1", width), .ffn_norm = read_norm(w, "ln2", width)};
    if (form_.post_norms) {
        layer.attn_post_norm = read_norm(w, "attn_post_norm", width);
        layer.ffn_post_norm = read_norm(w, "ffn_post_norm", width);
    }
    if (form_.head_norms) {
        layer.q_norm = read_norm(w, "attn_q_norm", width / form_.n_heads);
        layer.k_norm = read_norm(w, "attn_k_norm", width / form_.n_heads);
    }
    if (w.has("attn_qkv.weight")) {
        layer.qkv = linear("attn_qkv", {3 * width, width});
    } else {
        layer.q = linear("attn_q", square);
        layer.k = linear("attn_k", square);
        layer.v = linear("attn_v", square);
    }
    layer.out = linear("attn_out", square);

    const bool swapped = is_swapped(all, prefix, form_.width);
    const std::string up = swapped ? "ffn_down" : "ffn_up";
    const std::string down = swapped ? "ffn_up" : "ffn_down";
    const int64_t n_ffn = std::max<int64_t>(1, w.rows(up + ".weight"));
    if (form_.gated) layer.gate = linear("ffn_gate", {n_ffn, width});
    layer.up = linear(up, {n_ffn, width});
    layer.down = linear(down, {width, n_ffn});
    return layer;
}

Tower::Linear Tower::read_linear(const Weights& w, const std::string& name,
                                 const Shape& shape) const {
    Linear linear{.matrix = w.get(name + ".weight", shape),
                  .bias = w.find(name + ".bias", {shape[0]})};
    if (form_.clamped) {
        linear.given = read_limits(w, name + ".input");
        linear.result = read_limits(w, name + ".output");
    }
    return linear;
}

Value Tower::apply(Step& step, const Linear& w, Value x) {
    return limit(linear(limit(x, w.given), step.weight(w.matrix), step.weight(w.bias)), w.result);
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
    if (form_.rotation == TowerRotation::none) return x;
    const int half = form_.width / form_.n_heads / 2;
    const int quarter = half / 2;
    const auto part = [&](int i) {
        if (form_.rotation == TowerRotation::neighbours) return slice(x, i * half, half);
        if (form_.rotation == TowerRotation::halves) return slice(x, (1 - i) * half, half);
        return concat(slice(x, i * quarter, quarter), slice(x, half + i * quarter, quarter));
    };
    Rope rope{.n_rot = half,
              .base = form_.rope_base,
              .interleaved = form_.rotation == TowerRotation::neighbours};
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
    if (w.qkv.matrix) {
        const Value all = apply(step, w.qkv, x);
        q = slice(all, 0, form_.width);
        k = slice(all, form_.width, form_.width);
        v = slice(all, int64_t{2} * form_.width, form_.width);
    } else {
        q = apply(step, w.q, x);
        k = apply(step, w.k, x);
        v = apply(step, w.v, x);
    }
    const int n = form_.n_heads;
    q = split_heads(q, n);
    k = split_heads(k, n);
    v = split_heads(v, n);
    if (form_.head_norms) {
        q = normalize(step, q, w.q_norm, form_.norm);
        k = normalize(step, k, w.k_norm, form_.norm);
        v = normalize(step, v, {.applies = true}, form_.norm);
    }
    const auto head_dim = static_cast<float>(form_.width / n);
    const float factor =
        form_.attention_scale > 0.0f ? form_.attention_scale : 1.0f / std::sqrt(head_dim);
    const Value y = step.attend_within(i, rotate(step, q), rotate(step, k), v, {.scale = factor});
    const Value out = apply(step, w.out, merge_heads(y));
    return form_.post_norms ? normalize(step, out, w.attn_post_norm, form_.norm) : out;
}

Value Tower::feed_forward(Step& step, const Layer& w, Value x) const {
    const auto activated = [&](Value y) {
        switch (form_.activation) {
        case TowerActivation::gelu: return activate(y, Activation::gelu);
        case TowerActivation::gelu_tanh: return activate(y, Activation::gelu_tanh);
        case TowerActivation::silu: return activate(y, Activation::silu);
        case TowerActivation::quick_gelu: break;
        }
        return gate(scale(y, 1.702f), y, Activation::sigmoid);
    };
    const Value up = apply(step, w.up, x);
    const Value h = w.gate.matrix ? activated(apply(step, w.gate, x)) * up : activated(up);
    const Value y = apply(step, w.down, h);
    return form_.post_norms ? normalize(step, y, w.ffn_post_norm, form_.norm) : y;
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
