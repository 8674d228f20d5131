// The metadata keys we read, with their meaning. "{arch}" stands for general.architecture.
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
inline constexpr std::string_view kName = "general.name";                  // string, for people
inline constexpr std::string_view kAlignment = "general.alignment";        // u32, of data; else 32
inline constexpr std::string_view kFileType = "general.file_type";  // u32, most common tensor type

inline constexpr std::string_view kType = "general.type";  // "adapter"; of models: "model"

// A low-rank adapter.
inline constexpr std::string_view kAdapterType = "adapter.type";      // "lora"
inline constexpr std::string_view kLoraAlpha = "adapter.lora.alpha";  // real; 0: none
inline constexpr std::string_view kLoraRankStabilized =
    "adapter.lora.rank_stabilized";  // boolean: alpha over the rank's root
inline constexpr std::string_view kLoraInvocationTokens =
    "adapter.alora.invocation_tokens";  // u32 each: they switch it on

// A model in several files, each with its own metadata and tensors.
inline constexpr std::string_view kSplitCount = "split.count";  // how many files
inline constexpr std::string_view kSplitNumber = "split.no";    // which one this is, from 0
inline constexpr std::string_view kSplitTensors = "split.tensors.count";  // tensors in all files

// Suffixes of "{arch}.": sizes.
inline constexpr std::string_view kBlockCount = "block_count";            // layers
inline constexpr std::string_view kContextLength = "context_length";      // tokens trained with
inline constexpr std::string_view kEmbeddingLength = "embedding_length";  // width of the residual
inline constexpr std::string_view kFeedForwardLength = "feed_forward_length";  // one, or per layer
inline constexpr std::string_view kVocabSize = "vocab_size";
inline constexpr std::string_view kHeadCount = "attention.head_count";          // one, or per layer
inline constexpr std::string_view kHeadCountKv = "attention.head_count_kv";     // one, or per layer
inline constexpr std::string_view kKeyLength = "attention.key_length";          // of a head
inline constexpr std::string_view kValueLength = "attention.value_length";      // of a head
inline constexpr std::string_view kSlidingWindow = "attention.sliding_window";  // tokens
inline constexpr std::string_view kExpertCount = "expert_count";
inline constexpr std::string_view kExpertUsedCount = "expert_used_count";  // experts a token visits

// Suffixes of "{arch}.": normalisation and rotation.
inline constexpr std::string_view kRmsEpsilon = "attention.layer_norm_rms_epsilon";
inline constexpr std::string_view kNormEpsilon = "attention.layer_norm_epsilon";
inline constexpr std::string_view kRopeDimensionCount = "rope.dimension_count";  // rotated per head
inline constexpr std::string_view kRopeFrequencyBase = "rope.freq_base";
inline constexpr std::string_view kRopeScalingType = "rope.scaling.type";  // none, linear, yarn ...
inline constexpr std::string_view kRopeScalingFactor = "rope.scaling.factor";

// The tokenizer.
inline constexpr std::string_view kTokenizerModel =
    "tokenizer.ggml.model";                                              // llama, gpt2, bert ...
inline constexpr std::string_view kTokenizerPre = "tokenizer.ggml.pre";  // pre-tokenizer's name
inline constexpr std::string_view kTokens = "tokenizer.ggml.tokens";     // strings, by id
inline constexpr std::string_view kTokenTypes = "tokenizer.ggml.token_type";  // integers, by id
inline constexpr std::string_view kTokenScores = "tokenizer.ggml.scores";     // reals, by id
inline constexpr std::string_view kMerges = "tokenizer.ggml.merges";          // "a b", best first

}  // namespace keys

}  // namespace plait::gguf
