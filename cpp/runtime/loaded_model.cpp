#include "runtime/loaded_model.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"
#include "runtime/devices/weight_copies.h"

namespace plait {
namespace {

// The tokenizers that python/plait/tokenizer implements. It checks the other tokenizer metadata
// itself.
constexpr std::array<std::string_view, 9> kTokenizers = {
    "bert", "gemma4", "gpt2", "llama", "none", "plamo2", "rwkv", "t5", "whitespace"};

std::string listed(std::span<const std::string_view> names) {
    std::string all;
    for (const std::string_view name : names) all += text(all.empty() ? "" : ", ", name);
    return all;
}

// If the key exists, it must hold an array with one `type` per token.
void expect_one_each(const gguf::File& file, std::string_view key, gguf::ValueType type,
                     size_t n_tokens) {
    const gguf::Value* value = file.metadata().find(key);
    if (value == nullptr) return;
    const auto* array = std::get_if<gguf::Array>(&value->data());
    if (array == nullptr || array->element != type)
        throw ModelError(text(file.path(), ": ", key, ": expected an array of ",
                              gguf::to_string(type), ", got ", value->type_name()));
    if (array->size() != n_tokens)
        throw ModelError(text(file.path(), ": ", key, ": expected ", n_tokens,
                              " values, one per token, got ", array->size()));
}

// A file must contain its tokens unless its tokenizer model is "no_vocab".
void check_vocabulary(const gguf::File& file, const ModelInfo& info) {
    const gguf::Metadata& metadata = file.metadata();
    const std::string& model = metadata.string(gguf::keys::kTokenizerModel);
    if (model == "no_vocab") return;
    if (std::ranges::find(kTokenizers, model) == kTokenizers.end())
        throw UnsupportedError(text(file.path(), ": ", gguf::keys::kTokenizerModel, ": \"", model,
                                    "\" is not supported; supported are ", listed(kTokenizers),
                                    ", and no_vocab for a file without tokens"));
    const size_t n_tokens = metadata.strings(gguf::keys::kTokens).size();
    if (n_tokens == 0 || static_cast<int64_t>(n_tokens) > info.n_vocab)
        throw ModelError(text(file.path(), ": ", gguf::keys::kTokens, " has ", n_tokens,
                              " tokens, but token_embd.weight has ", info.n_vocab, " rows"));
    expect_one_each(file, gguf::keys::kTokenScores, gguf::ValueType::f32, n_tokens);
    expect_one_each(file, gguf::keys::kTokenTypes, gguf::ValueType::i32, n_tokens);
}

}  // namespace

LoadedModel::LoadedModel() = default;
LoadedModel::~LoadedModel() = default;

std::shared_ptr<const LoadedModel> LoadedModel::open(const std::string& path,
                                                     const Options& options) {
    std::shared_ptr<LoadedModel> loaded(new LoadedModel);
    loaded->file_ = gguf::File::open(path, {.mmap = options.mmap});
    loaded->weights_ = std::make_shared<const Weights>(loaded->file_, options.packed);
    loaded->copies_ = std::make_unique<WeightCopies>(loaded->weights_);
    if (options.image_part) {
        loaded->model_ = make_image_model(*loaded->weights_, *options.image_part);
        return loaded;
    }
    loaded->model_ = make_model(*loaded->weights_);
    check_vocabulary(*loaded->file_, loaded->info());
    return loaded;
}

StoresByDevice LoadedModel::weights_on(const DeviceSet& devices) const {
    return copies_->on(devices);
}

int64_t LoadedModel::n_params() const {
    int64_t n = 0;
    for (const gguf::TensorInfo& tensor : file_->tensors()) n += tensor.type.shape.elements();
    return n;
}

const Facts& LoadedModel::facts() const {
    const std::lock_guard lock(mutex_);
    if (facts_.empty()) facts_ = facts_of(*file_);
    return facts_;
}

}  // namespace plait
