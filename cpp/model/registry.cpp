#include <array>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "model/model.h"

namespace plait {

// Every architecture: the function in arch/ that makes it and its name in general.architecture.
// clang-format off
#define PLAIT_ARCHITECTURES(ROW) \
    ROW(make_arcee, "arcee")                     \
    ROW(make_bailingmoe2, "bailingmoe2")         \
    ROW(make_bert, "bert")                       \
    ROW(make_bloom, "bloom")                     \
    ROW(make_cohere2, "cohere2")                 \
    ROW(make_command_r, "command-r")             \
    ROW(make_deepseek, "deepseek")               \
    ROW(make_deepseek2, "deepseek2")             \
    ROW(make_dots1, "dots1")                     \
    ROW(make_ernie4_5, "ernie4_5")               \
    ROW(make_ernie4_5_moe, "ernie4_5-moe")       \
    ROW(make_exaone_moe, "exaone-moe")           \
    ROW(make_exaone4, "exaone4")                 \
    ROW(make_falcon, "falcon")                   \
    ROW(make_falcon_h1, "falcon-h1")             \
    ROW(make_gemma, "gemma")                     \
    ROW(make_gemma_embedding, "gemma-embedding") \
    ROW(make_gemma2, "gemma2")                   \
    ROW(make_gemma3, "gemma3")                   \
    ROW(make_glm4, "glm4")                       \
    ROW(make_glm4moe, "glm4moe")                 \
    ROW(make_gpt_oss, "gpt-oss")                 \
    ROW(make_gpt2, "gpt2")                       \
    ROW(make_gptneox, "gptneox")                 \
    ROW(make_granite, "granite")                 \
    ROW(make_granitehybrid, "granitehybrid")     \
    ROW(make_granitemoe, "granitemoe")           \
    ROW(make_hunyuan_dense, "hunyuan-dense")     \
    ROW(make_hunyuan_moe, "hunyuan-moe")         \
    ROW(make_internlm2, "internlm2")             \
    ROW(make_jamba, "jamba")                     \
    ROW(make_jina_bert_v2, "jina-bert-v2")       \
    ROW(make_jina_bert_v3, "jina-bert-v3")       \
    ROW(make_lfm2, "lfm2")                       \
    ROW(make_lfm2moe, "lfm2moe")                 \
    ROW(make_llama, "llama")                     \
    ROW(make_mamba, "mamba")                     \
    ROW(make_mamba2, "mamba2")                   \
    ROW(make_minicpm, "minicpm")                 \
    ROW(make_minicpm3, "minicpm3")               \
    ROW(make_minimax_m2, "minimax-m2")           \
    ROW(make_modern_bert, "modern-bert")         \
    ROW(make_nemotron, "nemotron")               \
    ROW(make_nemotron_h, "nemotron_h")           \
    ROW(make_nemotron_h_moe, "nemotron_h_moe")   \
    ROW(make_nomic_bert, "nomic-bert")           \
    ROW(make_nomic_bert_moe, "nomic-bert-moe")   \
    ROW(make_olmo2, "olmo2")                     \
    ROW(make_olmoe, "olmoe")                     \
    ROW(make_phi2, "phi2")                       \
    ROW(make_phi3, "phi3")                       \
    ROW(make_qwen2, "qwen2")                     \
    ROW(make_qwen2moe, "qwen2moe")               \
    ROW(make_qwen2vl, "qwen2vl")                 \
    ROW(make_qwen3, "qwen3")                     \
    ROW(make_qwen3moe, "qwen3moe")               \
    ROW(make_qwen3next, "qwen3next")             \
    ROW(make_rwkv6, "rwkv6")                     \
    ROW(make_rwkv7, "rwkv7")                     \
    ROW(make_seed_oss, "seed_oss")               \
    ROW(make_smollm3, "smollm3")                 \
    ROW(make_stablelm, "stablelm")               \
    ROW(make_starcoder, "starcoder")             \
    ROW(make_starcoder2, "starcoder2")           \
    ROW(make_t5, "t5")                           \
    ROW(make_t5encoder, "t5encoder")
// clang-format on

#define PLAIT_DECLARE(make, name) \
    std::unique_ptr<Model> make(const Hparams& hparams, const Weights& weights);
PLAIT_ARCHITECTURES(PLAIT_DECLARE)
#undef PLAIT_DECLARE

namespace {

struct Architecture {
    std::unique_ptr<Model> (*make)(const Hparams&, const Weights&);
    std::string_view name;
};

#define PLAIT_ROW(make, name) Architecture{make, name},
constexpr std::array kArchitectures = {PLAIT_ARCHITECTURES(PLAIT_ROW)};
#undef PLAIT_ROW

// The name prefixes of layers for multi-token prediction, which are not run.
std::vector<std::string> drafting_layers(const Hparams& hp, const Model& model) {
    const int first = model.info().n_layers;
    const int n = hp.index("nextn_predict_layers", Hparams::kMaxLayers, 0);
    std::vector<std::string> prefixes;
    for (int i = 0; i < n; ++i) prefixes.push_back(text("blk.", first + i, "."));
    return prefixes;
}

}  // namespace

std::vector<std::string> architectures() {
    std::vector<std::string> names;
    for (const Architecture& a : kArchitectures) names.emplace_back(a.name);
    return names;
}

std::unique_ptr<Model> make_model(const Weights& weights) {
    const gguf::Metadata& metadata = weights.file().metadata();
    const std::string& name = metadata.string(gguf::keys::kArchitecture);
    for (const Architecture& a : kArchitectures)
        if (a.name == name) {
            const Hparams hparams(metadata, name);
            std::unique_ptr<Model> model = a.make(hparams, weights);
            weights.expect_all_read(drafting_layers(hparams, *model));
            return model;
        }
    std::string known;
    for (const Architecture& a : kArchitectures) known += text(known.empty() ? "" : ", ", a.name);
    throw UnsupportedError(text(weights.file().path(), ": architecture \"", name,
                                "\" is not supported; supported are ", known));
}

}  // namespace plait
