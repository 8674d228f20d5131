#include "model/model.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "graph/ops.h"
#include "model/step.h"

namespace plait {
namespace {

Value move_input(Graph& graph, InputField field, const PlanKey& key) {
    return graph.input({field, key.group}, {DType::i32, {key.n_moves}}, Extent::moves);
}

Value storage_value(Graph& graph, const MemoryLayout& layout, size_t index) {
    const StorageInfo& info = layout.storage[index];
    return graph.storage(static_cast<uint32_t>(index), storage_type(info));
}

}  // namespace

Graph Model::build(const PlanKey& key, const MemoryLayout& layout,
                   const BuildOptions& options) const {
    switch (key.kind) {
    case GraphKind::copy_rows: return build_copy_rows(key, layout);
    case GraphKind::shift_keys: return build_shift_keys(key, layout, options);
    case GraphKind::decode:
    case GraphKind::encode:
    case GraphKind::score: break;
    }
    Graph graph;
    Step step(graph, key, layout, options);
    if (key.kind == GraphKind::score)
        build_scores(step);
    else if (key.kind == GraphKind::encode && info_.has_encoder)
        build_encoder(step);
    else
        build_decoder(step);
    return graph;
}

MemorySpecs Model::memory_specs_of(const LayerRange& layers) const {
    MemorySpecs specs = memory_specs();
    for (int i = 0; i < info_.n_all_layers(); ++i)
        if (!layers.has(i)) specs[static_cast<size_t>(i)].clear();
    return specs;
}

void Model::build_scores(Step&) const {
    throw InternalError("build_scores called for a model without a scoring head");
}

Model::KeyRotation Model::key_rotation(int, const BuildOptions&) const {
    throw InternalError("key_rotation called for a model without rotation");
}

Graph Model::build_copy_rows(const PlanKey& key, const MemoryLayout& layout) const {
    Graph graph;
    for (size_t i = 0; i < layout.storage.size(); ++i)
        if (layout.storage[i].group == key.group)
            copy_rows(storage_value(graph, layout, i),
                      move_input(graph, InputField::from_rows, key),
                      move_input(graph, InputField::to_rows, key));
    return graph;
}

Graph Model::build_shift_keys(const PlanKey& key, const MemoryLayout& layout,
                              const BuildOptions& options) const {
    Graph graph;
    for (size_t i = 0; i < layout.storage.size(); ++i) {
        const StorageInfo& info = layout.storage[i];
        if (info.group != key.group || !info.rotated) continue;
        KeyRotation how = key_rotation(info.id.layer, options);
        how.rope.magnitude = 1.0;  // stored keys are already multiplied by it
        rotate_rows(storage_value(graph, layout, i), move_input(graph, InputField::to_rows, key),
                    move_input(graph, InputField::deltas, key),
                    {how.rope, info.n_heads, info.head_dim, how.begin, info.hadamard},
                    how.factors ? graph.weight(how.factors) : Value{});
    }
    return graph;
}

ModelInfo read_info(const Hparams& hp, const Weights& weights) {
    ModelInfo info;
    info.arch = hp.architecture();
    info.n_layers = hp.count("block_count", Hparams::kMaxLayers);
    info.width = hp.count("embedding_length");
    info.n_ctx_train = hp.index("context_length", INT32_MAX, 0);

    constexpr std::array kPoolings = {Pooling::none, Pooling::mean, Pooling::cls, Pooling::last,
                                      Pooling::rank};
    const int pooling = hp.index("pooling_type", kPoolings.size() - 1, 0);
    info.pooling = kPoolings[static_cast<size_t>(pooling)];

    const gguf::TensorInfo* table = weights.file().find("token_embd.weight");
    if (table == nullptr || table->type.shape.rank != 2)
        throw ModelError("tensor token_embd.weight is missing or is not a matrix");
    info.n_vocab = table->type.shape[0];
    if (info.n_vocab > INT32_MAX)
        throw ModelError(
            text("token_embd.weight: ", info.n_vocab, " rows, expected at most 2147483647"));
    if (hp.has("vocab_size") && hp.count("vocab_size", INT32_MAX) != info.n_vocab)
        hp.refuse("vocab_size", text("is ", hp.count("vocab_size", INT32_MAX),
                                     ", but token_embd.weight has ", info.n_vocab, " rows"));
    // Without this check, layers beyond block_count would be ignored silently.
    const std::string next = text("blk.", info.n_layers, ".");
    if (std::ranges::any_of(weights.file().tensors(), [&](const gguf::TensorInfo& tensor) {
            return tensor.name.starts_with(next) || tensor.name.starts_with("enc." + next);
        }))
        hp.refuse("block_count", text("is ", info.n_layers, ", but the file has more layers"));
    // The last layers may be for multi-token prediction: see ModelForm::add_drafting_layers().
    info.n_layers -= hp.index("nextn_predict_layers", info.n_layers - 1, 0);
    return info;
}

}  // namespace plait
