// A tiny llama with random weights, written to a temporary file and opened.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>

#include "gguf/writer.h"
#include "runtime/loaded_model.h"

namespace plait::test {

struct TinyModel {
    int n_layers = 2;
    int64_t width = 64, n_ffn = 96, n_vocab = 80;
    int n_heads = 4, n_kv_heads = 2;
    int64_t head_dim() const { return width / n_heads; }

    GgufWriter writer(uint32_t seed = 1) const {
        using gguf::ValueType;
        GgufWriter w;
        w.string("general.architecture", "llama").string("tokenizer.ggml.model", "no_vocab");
        const auto count = [&](const char* key, int64_t value) {
            w.number(std::string("llama.") + key, ValueType::u32, static_cast<uint32_t>(value));
        };
        count("block_count", n_layers);
        count("context_length", 256);
        count("embedding_length", width);
        count("feed_forward_length", n_ffn);
        count("attention.head_count", n_heads);
        count("attention.head_count_kv", n_kv_heads);
        w.number("llama.attention.layer_norm_rms_epsilon", ValueType::f32, 1e-5f);
        std::mt19937 random(seed);
        const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
            std::normal_distribution<float> normal(0.0f,
                                                   1.5f / std::sqrt(static_cast<float>(columns)));
            std::string bytes;
            for (int64_t i = 0; i < rows * columns; ++i) bytes += raw(normal(random));
            w.tensor(name, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)},
                     DType::f32, bytes);
        };
        const auto vector = [&](const std::string& name, int64_t n) {
            std::string bytes;
            for (int64_t i = 0; i < n; ++i) bytes += raw(1.0f);
            w.tensor(name, {static_cast<uint64_t>(n)}, DType::f32, bytes);
        };
        matrix("token_embd.weight", n_vocab, width);
        vector("output_norm.weight", width);
        for (int i = 0; i < n_layers; ++i) {
            const std::string blk = "blk." + std::to_string(i) + ".";
            vector(blk + "attn_norm.weight", width);
            matrix(blk + "attn_q.weight", width, width);
            matrix(blk + "attn_k.weight", n_kv_heads * head_dim(), width);
            matrix(blk + "attn_v.weight", n_kv_heads * head_dim(), width);
            matrix(blk + "attn_output.weight", width, width);
            vector(blk + "ffn_norm.weight", width);
            matrix(blk + "ffn_gate.weight", n_ffn, width);
            matrix(blk + "ffn_up.weight", n_ffn, width);
            matrix(blk + "ffn_down.weight", width, n_ffn);
        }
        return w;
    }

    std::shared_ptr<const LoadedModel> open() const;
};

inline std::shared_ptr<const LoadedModel> TinyModel::open() const {
    const TempFolder folder;
    return LoadedModel::open(folder.write("tiny.gguf", writer().bytes()), {});
}

}  // namespace plait::test
