#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "model/known_keys.h"
#include "model/model.h"

namespace plait {

// Every architecture: the function in arch/ that makes it and its name in general.architecture.
// clang-format off
#define PLAIT_ARCHITECTURES(ROW) \
    ROW(make_apertus, "apertus")                 \
    ROW(make_arcee, "arcee")                     \
    ROW(make_bailingmoe2, "bailingmoe2")         \
    ROW(make_bert, "bert")                       \
    ROW(make_bitnet, "bitnet")                   \
    ROW(make_bloom, "bloom")                     \
    ROW(make_cohere2, "cohere2")                 \
    ROW(make_cohere2moe, "cohere2moe")           \
    ROW(make_command_r, "command-r")             \
    ROW(make_deepseek, "deepseek")               \
    ROW(make_deepseek2, "deepseek2")             \
    ROW(make_dots1, "dots1")                     \
    ROW(make_ernie4_5, "ernie4_5")               \
    ROW(make_ernie4_5_moe, "ernie4_5-moe")       \
    ROW(make_eurobert, "eurobert")               \
    ROW(make_exaone_moe, "exaone-moe")           \
    ROW(make_exaone4, "exaone4")                 \
    ROW(make_falcon, "falcon")                   \
    ROW(make_falcon_h1, "falcon-h1")             \
    ROW(make_gemma, "gemma")                     \
    ROW(make_gemma_embedding, "gemma-embedding") \
    ROW(make_gemma2, "gemma2")                   \
    ROW(make_gemma3, "gemma3")                   \
    ROW(make_gemma3n, "gemma3n")                 \
    ROW(make_gemma4, "gemma4")                   \
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
    ROW(make_kimi_linear, "kimi-linear")         \
    ROW(make_lfm2, "lfm2")                       \
    ROW(make_lfm2moe, "lfm2moe")                 \
    ROW(make_llama, "llama")                     \
    ROW(make_llama4, "llama4")                   \
    ROW(make_mamba, "mamba")                     \
    ROW(make_mamba2, "mamba2")                   \
    ROW(make_minicpm, "minicpm")                 \
    ROW(make_minicpm3, "minicpm3")               \
    ROW(make_minimax_m2, "minimax-m2")           \
    ROW(make_mistral3, "mistral3")               \
    ROW(make_modern_bert, "modern-bert")         \
    ROW(make_mpt, "mpt")                         \
    ROW(make_nemotron, "nemotron")               \
    ROW(make_nemotron_h, "nemotron_h")           \
    ROW(make_nemotron_h_moe, "nemotron_h_moe")   \
    ROW(make_neo_bert, "neo-bert")               \
    ROW(make_nomic_bert, "nomic-bert")           \
    ROW(make_nomic_bert_moe, "nomic-bert-moe")   \
    ROW(make_olmo, "olmo")                       \
    ROW(make_olmo2, "olmo2")                     \
    ROW(make_olmoe, "olmoe")                     \
    ROW(make_phi2, "phi2")                       \
    ROW(make_phi3, "phi3")                       \
    ROW(make_plamo2, "plamo2")                   \
    ROW(make_qwen2, "qwen2")                     \
    ROW(make_qwen2moe, "qwen2moe")               \
    ROW(make_qwen2vl, "qwen2vl")                 \
    ROW(make_qwen3, "qwen3")                     \
    ROW(make_qwen35, "qwen35")                   \
    ROW(make_qwen35moe, "qwen35moe")             \
    ROW(make_qwen3moe, "qwen3moe")               \
    ROW(make_qwen3next, "qwen3next")             \
    ROW(make_qwen3vl, "qwen3vl")                 \
    ROW(make_qwen3vlmoe, "qwen3vlmoe")           \
    ROW(make_rwkv6, "rwkv6")                     \
    ROW(make_rwkv6qwen2, "rwkv6qwen2")           \
    ROW(make_rwkv7, "rwkv7")                     \
    ROW(make_seed_oss, "seed_oss")               \
    ROW(make_smallthinker, "smallthinker")       \
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

// The name prefixes of layers for multi-token prediction that cannot be run.
std::vector<std::string> ignored_layers(const Hparams& hp, const ModelInfo& info) {
    const int n = hp.index("nextn_predict_layers", Hparams::kMaxLayers, 0);
    std::vector<std::string> prefixes;
    for (int i = info.n_drafting; i < n; ++i)
        prefixes.push_back(text("blk.", info.n_layers + i, "."));
    return prefixes;
}

std::unique_ptr<Model> make(const Architecture& architecture, const Hparams& hp, const Weights& w) {
    std::unique_ptr<Model> model = architecture.make(hp, w);
    w.expect_all_read(ignored_layers(hp, model->info()));
    expect_all_keys_read(hp);
    return model;
}

// Returns the edit distance: the min number of insertions, deletions and substitutions of
// characters that turn one string into the other.
size_t distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({change, diagonal + 1, row[j] + 1});
        }
    }
    return row.back();
}

// Throws for an architecture that is not in the list. The message names the most similar
// architecture and the first reason why the file cannot be loaded as that one.
[[noreturn]] void refuse_architecture(const Weights& weights, const std::string& name) {
    constexpr size_t kMaxLetters = 64;  // of a name that is compared
    const std::string_view letters = std::string_view(name).substr(0, kMaxLetters);
    const Architecture& nearest = *std::ranges::min_element(
        kArchitectures, {}, [&](const Architecture& a) { return distance(letters, a.name); });
    std::string missing;
    try {
        make(nearest, Hparams(weights.file().metadata(), name), weights);
        missing = "the file has all of its hyperparameters and tensors";
    } catch (const std::runtime_error& error) {
        missing = text("reading the file as that architecture fails: ", error.what());
    }
    std::string known;
    for (const Architecture& a : kArchitectures) known += text(known.empty() ? "" : ", ", a.name);
    throw UnsupportedError(
        text(weights.file().path(), ": architecture \"", name,
             "\" is not supported; the supported architecture with the most similar name is ",
             nearest.name, " (", missing, "); supported are ", known));
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
            return make(a, hparams, weights);
        }
    if (name == "clip")
        throw UnsupportedError(text(weights.file().path(),
                                    ": this file is an image encoder, not a ",
                                    "text model; open it with plait.Vision"));
    refuse_architecture(weights, name);
}

}  // namespace plait
