#include "model/vision/families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "model/known_keys.h"
#include "model/vision/projector.h"
#include "model/vision/tower.h"

namespace plait {
namespace {

struct ImageModels {
    TowerForm tower;
    ProjectorForm projector;
};

int squared(int side) { return side * side; }

// Reads the width of a row of `per_side` x `per_side` joined patches.
int joined_width(const Hparams& hp, const TowerForm& tower, int per_side) {
    if (tower.width > std::numeric_limits<int>::max() / squared(per_side) / 256)
        hp.refuse("vision.embedding_length", "is too large");
    return tower.width * squared(per_side);
}

int read_merge(const Hparams& hp, int fallback) {
    return hp.count("vision.spatial_merge_size", 16, fallback);
}

// Throws ModelError if the file lacks a tensor without which the tower would compute something else.
void expect_tensor(const Weights& w, std::string_view name) {
    if (!w.has(name)) throw ModelError(text(w.file().path(), ": tensor ", name, " is missing"));
}

// Rotations divide a head into four equal parts.
void expect_quarters(const Hparams& hp, const TowerForm& tower) {
    const int head_dim = tower.width / tower.n_heads;
    if (head_dim % 4 != 0)
        hp.refuse("vision.attention.head_count",
                  text("gives heads of ", head_dim, " elements, expected a multiple of 4"));
}

// Gemma 3. Gemma team 2025, arXiv:2503.19786: SigLIP, whose patches are averaged.
//
//   y = (n(mean of 4 x 4 patches of n(x))) W                 the outer n is RMSNorm
ImageModels read_gemma3(const Hparams& hp, const Weights& w) {
    ImageModels models{.tower = read_tower_form(hp, w, NormKind::layer)};
    expect_tensor(w, "v.position_embd.weight");
    models.tower.output_norm = "v.post_ln";
    const int n_embd = hp.count("vision.projection_dim");
    hp.count("vision.projector.scale_factor", 16, 4);  // used by the caller
    w.get("mm.soft_emb_norm.weight", {models.tower.width});
    w.get("mm.input_projection.weight", {models.tower.width, n_embd});
    return models;
}

// Gemma 4. Gemma Team 2026, https://huggingface.co/google/gemma-4-E2B-it: images of any shape, a
// position vector for the row and another for the column, and patches that are averaged. The caller
// multiplies the means by sqrt(width) and standardises them; n is RMSNorm without weights.
//
//   y = W n((sqrt(width) mean of 3 x 3 patches - std_bias) * std_scale)
ImageModels read_gemma4(const Hparams& hp, const Weights& w) {
    ImageModels models{.tower = read_tower_form(hp, w, NormKind::rms)};
    TowerForm& tower = models.tower;
    expect_quarters(hp, tower);
    expect_tensor(w, "v.position_embd.weight");
    const gguf::TensorInfo& positions = *w.file().find("v.position_embd.weight");
    if (positions.type.shape.rank != 3)
        throw ModelError(text(w.file().path(), ": v.position_embd.weight: expected 3 dimensions"));
    tower.n_position_tables = 2;
    tower.n_positions = positions.type.shape[1];
    tower.activation = TowerActivation::gelu_tanh;
    tower.gated = tower.clamped = tower.head_norms = tower.post_norms = true;
    tower.attention_scale = 1.0f;
    tower.rotation = TowerRotation::halves;
    tower.rope_base = 100.0;
    hp.count("vision.projector.scale_factor", 16, 3);  // used by the caller, as these are
    w.find("v.std_bias", {tower.width});
    w.find("v.std_scale", {tower.width});
    if (w.has("v.std_bias") != w.has("v.std_scale"))
        throw ModelError(text(w.file().path(), ": one of v.std_bias and v.std_scale is missing"));
    const int64_t n_embd = std::max<int64_t>(1, w.rows("mm.input_projection.weight"));
    models.projector.norm = tower.norm;
    models.projector.width = tower.width;
    models.projector.parts.push_back(
        {.norm = {.applies = true},
         .out = w.get("mm.input_projection.weight", {n_embd, tower.width})});
    return models;
}

// LLaVA. Liu et al. 2023, arXiv:2310.03744: CLIP without its last layer, and two matrices. LLaVA 1.6,
// https://llava-vl.github.io/blog/2024-01-30-llava-next: the caller divides images into tiles.
ImageModels read_llava(const Hparams& hp, const Weights& w) {
    ImageModels models{.tower = read_tower_form(hp, w, NormKind::layer)};
    expect_tensor(w, "v.position_embd.weight");
    if (models.tower.has_class_token) expect_tensor(w, "v.pre_ln.weight");
    if (models.tower.activation == TowerActivation::gelu_tanh)
        models.tower.activation = TowerActivation::gelu;
    const bool tiles = hp.has("vision.image_grid_pinpoints");
    if (hp.string("vision.mm_patch_merge_type", tiles ? "spatial_unpad" : "flat") !=
        (tiles ? "spatial_unpad" : "flat"))
        throw UnsupportedError(text(w.file().path(), ": ", hp.key("vision.mm_patch_merge_type"),
                                    ": expected spatial_unpad with image_grid_pinpoints, and flat ",
                                    "without"));
    if (hp.string("vision.mm_projector_type", "mlp2x_gelu") != "mlp2x_gelu")
        throw UnsupportedError(text(w.file().path(), ": ", hp.key("vision.mm_projector_type"),
                                    ": expected mlp2x_gelu"));
    if (hp.has("vision.feature_layer"))
        throw UnsupportedError(text(w.file().path(), ": ", hp.key("vision.feature_layer"),
                                    " is not supported; expected all layers of the file"));
    w.find("v.post_ln.weight", {models.tower.width});  // not used
    w.find("v.post_ln.bias", {models.tower.width});
    models.projector.width = models.tower.width;
    models.projector.parts.push_back(
        read_projector_part(w, {"", "mm.0", "mm.2"}, models.tower.width));
    if (tiles) {  // added by the caller
        const int64_t n_embd = models.projector.parts.front().out.type.shape[0];
        w.find("model.image_newline", {n_embd});
        w.find("v.image_newline", {n_embd});
    }
    return models;
}

// Pixtral and Mistral Small 3.1. Mistral AI 2024, arXiv:2410.07073: the frequencies of a head
// alternate between rows and columns. Mistral Small also joins 2 x 2 patches by a matrix.
ImageModels read_pixtral(const Hparams& hp, const Weights& w) {
    ImageModels models{.tower = read_tower_form(hp, w, NormKind::rms)};
    TowerForm& tower = models.tower;
    expect_quarters(hp, tower);
    expect_tensor(w, "v.pre_ln.weight");
    tower.gated = true;
    tower.rotation = TowerRotation::neighbours;
    tower.column_scale =
        std::pow(10000.0, -2.0 / (static_cast<double>(tower.width) / tower.n_heads));
    if (tower.activation == TowerActivation::gelu_tanh) tower.activation = TowerActivation::gelu;
    if (w.has("mm.input_norm.weight")) tower.output_norm = "mm.input_norm";
    const int merge = read_merge(hp, 1);
    models.projector.width = joined_width(hp, tower, merge);
    const bool joins = merge > 1;
    if (joins) {
        expect_tensor(w, "mm.input_norm.weight");
        models.projector.joint =
            w.get("mm.patch_merger.weight", {tower.width, models.projector.width});
    }
    models.projector.parts.push_back(
        read_projector_part(w, {"", "mm.1", "mm.2"}, joins ? tower.width : models.projector.width));
    const int64_t n_embd = models.projector.parts.front().out.type.shape[0];
    w.find("v.token_embd.img_break", {n_embd});  // added by the caller
    return models;
}

ImageModels read_qwen(const Hparams& hp, const Weights& w, NormKind norm) {
    ImageModels models{.tower = read_tower_form(hp, w, norm)};
    expect_quarters(hp, models.tower);
    expect_tensor(w, "v.patch_embd.weight.1");
    models.tower.gated = norm == NormKind::rms;
    models.tower.rotation = TowerRotation::pairs;
    models.tower.output_norm = "v.post_ln";
    models.projector.norm = models.tower.norm;
    models.projector.width = joined_width(hp, models.tower, read_merge(hp, 2));
    models.projector.parts.push_back(
        read_projector_part(w, {"", "mm.0", "mm.2"}, models.projector.width));
    return models;
}

// Qwen2-VL. Wang et al. 2024, arXiv:2409.12191.
ImageModels read_qwen2vl(const Hparams& hp, const Weights& w) {
    return read_qwen(hp, w, NormKind::layer);
}

// Qwen2.5-VL. Bai et al. 2025, arXiv:2502.13923: RMSNorm, gates, and windows in most layers.
ImageModels read_qwen25vl(const Hparams& hp, const Weights& w) {
    ImageModels models = read_qwen(hp, w, NormKind::rms);
    models.tower.full_every = hp.count("vision.n_wa_pattern", Hparams::kMaxLayers);
    hp.count("vision.window_size", 1 << 16, 112);  // used by the caller
    return models;
}

// Qwen3-VL. Qwen team 2025, arXiv:2511.21631: position vectors, and outputs of some layers are
// projected too (DeepStack, arXiv:2406.04334).
ImageModels read_qwen3vl(const Hparams& hp, const Weights& w) {
    ImageModels models = read_qwen(hp, w, NormKind::layer);
    expect_tensor(w, "v.position_embd.weight");
    if (!hp.has("vision.is_deepstack_layers")) return models;
    const std::vector<bool> taps = hp.flags("vision.is_deepstack_layers", models.tower.n_layers);
    for (int i = 0; i < models.tower.n_layers; ++i) {
        if (!taps[static_cast<size_t>(i)]) continue;
        const std::string name = text("v.deepstack.", i, ".");
        models.tower.taps.push_back(i);
        models.projector.parts.push_back(read_projector_part(
            w, {name + "norm", name + "fc1", name + "fc2"}, models.projector.width));
        const int64_t n_embd = models.projector.parts.front().out.type.shape[0];
        if (models.projector.parts.back().out.type.shape[0] != n_embd)
            hp.refuse("vision.is_deepstack_layers",
                      text(name, "fc2.weight does not have ", n_embd, " rows as mm.2.weight has"));
    }
    return models;
}

struct Family {
    ImageModels (*read)(const Hparams&, const Weights&);
    std::string_view projector;
};
constexpr std::array kFamilies = {
    Family{read_gemma3, "gemma3"},
    Family{read_gemma4, "gemma4v"},
    Family{read_llava, "mlp"},
    Family{read_pixtral, "pixtral"},
    Family{read_qwen2vl, "qwen2vl_merger"},
    Family{read_qwen25vl, "qwen2.5vl_merger"},
    Family{read_qwen3vl, "qwen3vl_merger"},
};

const Family& family_of(const Hparams& hp, const Weights& w) {
    std::string name = hp.string("projector_type", "");
    if (name.empty()) name = hp.string("vision.projector_type", "");
    const auto found = std::ranges::find(kFamilies, name, &Family::projector);
    if (found != kFamilies.end()) return *found;
    std::string known;
    for (const Family& each : kFamilies) known += text(known.empty() ? "" : ", ", each.projector);
    throw UnsupportedError(text(w.file().path(), ": ", hp.key("projector_type"), ": \"", name,
                                "\" is not supported; supported are ", known));
}

// The rows of a projector's inputs and outputs have one section for each part.
void expect_narrow(const Weights& w, const ProjectorForm& form) {
    const int64_t max = Hparams::kMaxSize / std::max<int64_t>(1, std::ssize(form.parts));
    for (const ProjectorPart& part : form.parts) {
        const int64_t rows = part.out.type.shape[0];
        if (rows > max || form.width > max)
            throw ModelError(text(w.file().path(), ": tensor ", w.name(part.out.id), " has ", rows,
                                  " rows, and its input ", form.width, "; expected at most ", max,
                                  " each for a projector with ", form.parts.size(), " parts"));
    }
}

}  // namespace

std::unique_ptr<Model> make_image_model(const Weights& w, ImagePart part) {
    const std::string& arch = w.file().metadata().string(gguf::keys::kArchitecture);
    if (arch != "clip")
        throw ModelError(text(w.file().path(),
                              ": expected the architecture clip, an image "
                              "encoder (mmproj file), got ",
                              arch));
    const Hparams hp(w.file().metadata(), arch);
    const Family& family = family_of(hp, w);
    ImageModels models = family.read(hp, w);
    expect_narrow(w, models.projector);
    auto tower = std::make_unique<Tower>(w, std::move(models.tower));
    const std::vector<std::string> sound = {"a.", "mm.a."};
    w.expect_all_read(sound);
    expect_all_keys_read(hp);
    if (part == ImagePart::tower) return tower;
    if (models.projector.parts.empty())
        throw UnsupportedError(
            text(w.file().path(), ": the projector of ", family.projector, " is not a model"));
    return std::make_unique<Projector>(std::move(models.projector));
}

}  // namespace plait
