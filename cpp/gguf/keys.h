// Metadata keys that do not depend on the architecture, with their types and meaning. Keys that
// start with the name of the architecture are defined where cpp/model reads them.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-key-value-pairs
#pragma once

#include <string>
#include <string_view>

namespace plait::gguf {

// key("llama", "attention.head_count") is "llama.attention.head_count".
inline std::string key(std::string_view architecture, std::string_view suffix) {
    std::string joined;
    joined.reserve(architecture.size() + 1 + suffix.size());
    return joined.append(architecture).append(1, '.').append(suffix);
}

namespace keys {

inline constexpr std::string_view kArchitecture = "general.architecture";  // string: "llama"
inline constexpr std::string_view kName = "general.name";                  // string, for display
inline constexpr std::string_view kType = "general.type";            // string: "model", "adapter"
inline constexpr std::string_view kAlignment = "general.alignment";  // u32, bytes; default 32

// Low-rank adapters.
inline constexpr std::string_view kAdapterType = "adapter.type";      // string: "lora"
inline constexpr std::string_view kLoraAlpha = "adapter.lora.alpha";  // f32; 0: none
inline constexpr std::string_view kLoraRankStabilized =
    "adapter.lora.rank_stabilized";  // boolean; true: scale is alpha / sqrt(rank)
inline constexpr std::string_view kLoraInvocationTokens =
    "adapter.alora.invocation_tokens";  // array of u32: tokens that activate the adapter

// A model in several files, each with its own metadata and tensors.
inline constexpr std::string_view kSplitCount = "split.count";            // u16, number of files
inline constexpr std::string_view kSplitNumber = "split.no";              // u16, this file, from 0
inline constexpr std::string_view kSplitTensors = "split.tensors.count";  // i32, in all files

// Tokenizers.
inline constexpr std::string_view kTokenizerModel = "tokenizer.ggml.model";   // string: "gpt2"
inline constexpr std::string_view kTokens = "tokenizer.ggml.tokens";          // strings, by id
inline constexpr std::string_view kTokenTypes = "tokenizer.ggml.token_type";  // i32, by id
inline constexpr std::string_view kTokenScores = "tokenizer.ggml.scores";     // f32, by id

}  // namespace keys

}  // namespace plait::gguf
