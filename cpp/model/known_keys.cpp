#include "model/known_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// A key that ends with a star stands for all keys that begin like it.
struct Harmless {
    std::string_view architecture;  // empty: all
    std::string_view key;
};
constexpr std::array kHarmless = std::to_array<Harmless>({
    // Implied by the shapes of tensors, which are checked.
    {"", "attention.key_length"},
    {"", "attention.value_length"},
    {"", "expert_feed_forward_length"},
    {"", "expert_shared_count"},
    {"", "expert_shared_feed_forward_length"},
    {"", "feed_forward_length"},
    // These describe how the model was trained, was stored or is meant to be used.
    {"", "classifier.output_labels"},
    {"", "rope.scaling.finetuned"},
    {"", "tensor_data_layout"},
    {"t5", "decoder_start_token_id"},
    // Each architecture has one kind of norm.
    {"", "attention.layer_norm_epsilon"},
    {"", "attention.layer_norm_rms_epsilon"},
    // Details of features that another key turns off: groups of experts, YaRN.
    {"", "expert_group_used_count"},
    {"", "rope.scaling.yarn_*"},
    // attention.recurrent_layers replaces it.
    {"qwen35", "full_attention_interval"},
    {"qwen35moe", "full_attention_interval"},
    {"qwen3next", "full_attention_interval"},
    // Implied by the absence of the second norm.
    {"stablelm", "use_parallel_residual"},
    // Sizes of image encoders that follow from tensors, how their images are prepared (python/plait/
    // vision reads it), and encoders of sound, which are not run.
    {"clip", "audio.*"},
    {"clip", "has_audio_encoder"},
    {"clip", "has_llava_projector"},
    {"clip", "has_text_encoder"},
    {"clip", "has_vision_encoder"},
    {"clip", "vision.feed_forward_length"},
    {"clip", "vision.image_*"},
    {"clip", "vision.projection_dim"},
    // These architectures do not rotate.
    {"bert", "rope.*"},
    {"bloom", "rope.*"},
    {"gpt2", "rope.*"},
    {"granitehybrid", "rope.*"},
    {"jamba", "rope.*"},
    {"jina-bert-v2", "rope.*"},
    {"mpt", "rope.*"},
    {"nemotron_h", "rope.*"},
    {"nemotron_h_moe", "rope.*"},
    {"t5", "rope.*"},
    {"t5encoder", "rope.*"},
    // These architectures have no attention.
    {"mamba", "attention.*"},
    {"mamba2", "attention.*"},
    {"rwkv6", "attention.head_count*"},
    {"rwkv6qwen2", "attention.head_count"},
    {"rwkv7", "attention.head_count*"},
});

bool matches(std::string_view key, std::string_view pattern) {
    if (pattern.ends_with('*')) return key.starts_with(pattern.substr(0, pattern.size() - 1));
    return key == pattern;
}

}  // namespace

void expect_all_keys_read(const Hparams& hp) {
    std::string unknown;
    for (const std::string& key : hp.unread()) {
        const bool is_harmless = std::ranges::any_of(kHarmless, [&](const Harmless& each) {
            return (each.architecture.empty() || each.architecture == hp.architecture()) &&
                   matches(key, each.key);
        });
        if (!is_harmless) unknown += text(unknown.empty() ? "" : ", ", hp.key(key));
    }
    if (!unknown.empty())
        throw ModelError(text(
            unknown, ": not supported for ", hp.architecture(),
            " models; ignoring this could make the logits wrong. Try a newer version of plait"));
}

}  // namespace plait
