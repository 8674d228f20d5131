#include <array>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "model/model.h"

namespace plait {

std::unique_ptr<Model> make_bert(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_bloom(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_cohere2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_command_r(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_deepseek2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_exaone4(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_falcon_h1(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gemma(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gemma2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gemma3(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_glm4(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gpt2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gpt_oss(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_gptneox(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_granite(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_granitehybrid(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_jamba(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_lfm2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_llama(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_mamba(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_mamba2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_modern_bert(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_nemotron(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_nomic_bert(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_olmo2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_olmoe(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_phi2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_phi3(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen2moe(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen2vl(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen3(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen3moe(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_qwen3next(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_rwkv6(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_rwkv7(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_smollm3(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_stablelm(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_starcoder2(const Hparams& hparams, const Weights& weights);
std::unique_ptr<Model> make_t5(const Hparams& hparams, const Weights& weights);

namespace {

struct Architecture {
    std::string_view name;  // general.architecture
    std::unique_ptr<Model> (*make)(const Hparams&, const Weights&);
};

constexpr std::array kArchitectures = {
    Architecture{"bert", make_bert},
    Architecture{"bloom", make_bloom},
    Architecture{"cohere2", make_cohere2},
    Architecture{"command-r", make_command_r},
    Architecture{"deepseek2", make_deepseek2},
    Architecture{"exaone4", make_exaone4},
    Architecture{"falcon-h1", make_falcon_h1},
    Architecture{"gemma", make_gemma},
    Architecture{"gemma2", make_gemma2},
    Architecture{"gemma3", make_gemma3},
    Architecture{"glm4", make_glm4},
    Architecture{"gpt-oss", make_gpt_oss},
    Architecture{"gpt2", make_gpt2},
    Architecture{"gptneox", make_gptneox},
    Architecture{"granite", make_granite},
    Architecture{"granitehybrid", make_granitehybrid},
    Architecture{"jamba", make_jamba},
    Architecture{"lfm2", make_lfm2},
    Architecture{"llama", make_llama},
    Architecture{"mamba", make_mamba},
    Architecture{"mamba2", make_mamba2},
    Architecture{"modern-bert", make_modern_bert},
    Architecture{"nemotron", make_nemotron},
    Architecture{"nomic-bert", make_nomic_bert},
    Architecture{"olmo2", make_olmo2},
    Architecture{"olmoe", make_olmoe},
    Architecture{"phi2", make_phi2},
    Architecture{"phi3", make_phi3},
    Architecture{"qwen2", make_qwen2},
    Architecture{"qwen2moe", make_qwen2moe},
    Architecture{"qwen2vl", make_qwen2vl},
    Architecture{"qwen3", make_qwen3},
    Architecture{"qwen3moe", make_qwen3moe},
    Architecture{"qwen3next", make_qwen3next},
    Architecture{"rwkv6", make_rwkv6},
    Architecture{"rwkv7", make_rwkv7},
    Architecture{"smollm3", make_smollm3},
    Architecture{"stablelm", make_stablelm},
    Architecture{"starcoder2", make_starcoder2},
    Architecture{"t5", make_t5},
};

// What the names of tensors begin with whose layers draft tokens beyond the next: not run here.
std::vector<std::string> drafting_layers(const Hparams& hp, const Model& model) {
    const int first = model.info().n_layers;
    const int n = hp.index("nextn_predict_layers", Hparams::kMostLayers, 0);
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
