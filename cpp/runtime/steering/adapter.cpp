#include "runtime/steering/adapter.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "gguf/text.h"
#include "runtime/loaded_model.h"

namespace plait {
namespace {

constexpr std::string_view kA = ".lora_a";
constexpr std::string_view kB = ".lora_b";
constexpr std::string_view kTable = "token_embd.weight";

void expect_string(const gguf::File& file, std::string_view key, std::string_view expected) {
    const std::string& value = file.metadata().string(key);
    if (value != expected)
        throw ModelError(text(file.path(), ": ", key, ": expected ", gguf::quoted(expected),
                              ", got ", gguf::quoted(value)));
}

// Returns the names of the weights that the file has a pair of tensors for, in file order.
std::vector<std::string> paired_names(const gguf::File& file) {
    std::vector<std::string> names;
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        const std::string& name = tensor.name;
        const auto fail = [&](const std::string& why) {
            throw ModelError(text(file.path(), ": tensor ", gguf::quoted(name), " ", why));
        };
        if (name.ends_with("norm.weight"))
            throw UnsupportedError(text(file.path(), ": tensor ", gguf::quoted(name),
                                        " belongs to a norm; only matrices can be adapted"));
        const bool is_a = name.ends_with(kA);
        if (!is_a && !name.ends_with(kB)) fail("must end in .lora_a or .lora_b");
        const std::string weight = name.substr(0, name.size() - kA.size());
        if (file.find(weight + std::string(is_a ? kB : kA)) == nullptr)
            fail(text("has no ", is_a ? kB : kA, " counterpart"));
        if (tensor.type.dtype == DType::i32) fail("holds integers");
        if (tensor.type.shape.elements() == 0) fail("is empty");
        if (is_a) names.push_back(weight);
    }
    if (names.empty()) throw ModelError(file.path() + ": the adapter has no tensors");
    return names;
}

// Identifies an adapter by its scaling, the facts of its file and all bytes of its tensors.
std::string identity_of(const gguf::File& file, float alpha, bool rank_stabilized) {
    std::string said = text(alpha, rank_stabilized);
    for (const Fact& fact : facts_of(file)) said += text('\n', fact.name, ' ', fact.value);
    std::vector<std::byte> bytes;
    for (const gguf::TensorInfo& tensor : file.tensors()) {
        bytes.resize(tensor.bytes);
        file.read(tensor, 0, bytes);
        said += text('\n', checksum(bytes));
    }
    const std::string name = file.metadata().string(gguf::keys::kName, "");
    return text("LoRA ", name, name.empty() ? "" : " ", "of digest ", hexadecimal(checksum(said)));
}

}  // namespace

std::shared_ptr<const Adapter> Adapter::open(const std::string& path,
                                             std::shared_ptr<const LoadedModel> model,
                                             std::optional<bool> rank_stabilized) {
    static std::atomic<uint64_t> g_opened{0};
    std::shared_ptr<Adapter> adapter(new Adapter);
    const auto file = gguf::File::open(path);
    adapter->model_ = std::move(model);
    adapter->weights_ = std::make_shared<const Weights>(file);
    adapter->copies_ = std::make_unique<WeightCopies>(adapter->weights_);
    adapter->read_metadata();
    const bool stabilized = rank_stabilized.value_or(
        file->metadata().boolean(gguf::keys::kLoraRankStabilized, /*fallback=*/false));
    for (const std::string& name : paired_names(*file)) adapter->read_delta(name, stabilized);
    adapter->identity_ = identity_of(*file, adapter->alpha_, stabilized);
    adapter->number_ = ++g_opened;
    return adapter;
}

void Adapter::read_metadata() {
    const gguf::Metadata& metadata = file().metadata();
    expect_string(file(), gguf::keys::kType, "adapter");
    expect_string(file(), gguf::keys::kAdapterType, "lora");
    expect_string(file(), gguf::keys::kArchitecture, model_->info().arch);
    alpha_ = static_cast<float>(metadata.real(gguf::keys::kLoraAlpha, 0.0));
    if (!std::isfinite(alpha_))
        throw ModelError(text(path(), ": ", gguf::keys::kLoraAlpha, ": expected a finite number"));
    if (!metadata.has(gguf::keys::kLoraInvocationTokens)) return;
    for (const int64_t token : metadata.integers(gguf::keys::kLoraInvocationTokens)) {
        if (token < 0 || token >= model_->info().n_vocab)
            throw ModelError(text(path(), ": ", gguf::keys::kLoraInvocationTokens, ": token ",
                                  token, " does not exist: expected 0 to ",
                                  model_->info().n_vocab - 1));
        invocation_tokens_.push_back(static_cast<int32_t>(token));
    }
}

void Adapter::read_delta(const std::string& name, bool rank_stabilized) {
    const gguf::TensorInfo* base = model_->file().find(name);
    if (base == nullptr)
        throw ModelError(text(path(), ": tensor ", gguf::quoted(name + std::string(kA)),
                              ": the model has no tensor ", gguf::quoted(name)));
    const bool is_table = name == kTable;
    if (!is_table && name.ends_with("embd.weight"))
        throw UnsupportedError(text(path(), ": ", name,
                                    " is a table of embeddings; of these, only ", kTable,
                                    " can be adapted"));
    const Shape& shape = base->type.shape;  // [out, in] or a stack of those
    if (shape.rank != 2 && shape.rank != 3)
        throw ModelError(text(
            path(), ": tensor ", gguf::quoted(name + std::string(kA)), ": ", gguf::quoted(name),
            " must be a matrix, but its shape in the model is ", to_string(shape)));
    const int64_t rank = file().find(name + std::string(kB))->type.shape[-1];
    const auto with_last_two = [&](int64_t rows, int64_t columns) {
        Shape result = shape;
        result.dims[shape.rank - 2u] = rows;
        result.dims[shape.rank - 1u] = columns;
        return result;
    };
    // The table is looked up by row, so A is [n_vocab, r] and B is [width, r].
    const Weight a = weights_->get(
        name + std::string(kA), is_table ? Shape{shape[0], rank} : with_last_two(rank, shape[-1]));
    const Weight b = weights_->get(
        name + std::string(kB), is_table ? Shape{shape[1], rank} : with_last_two(shape[-2], rank));
    const auto r = static_cast<float>(rank);
    const float factor = alpha_ == 0.0f ? 1.0f : alpha_ / (rank_stabilized ? std::sqrt(r) : r);
    deltas_.push_back(
        {static_cast<WeightId>(base - model_->file().tensors().data()), a, b, factor});
}

}  // namespace plait
