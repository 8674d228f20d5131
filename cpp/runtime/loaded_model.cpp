#include "runtime/loaded_model.h"

#include "base/error.h"
#include "base/text.h"
#include "gguf/keys.h"

namespace plait {
namespace {

// Weights alone are fine when the file says so; any other file must bring its tokens.
void check_vocabulary(const gguf::File& file, const ModelInfo& info) {
    const gguf::Metadata& metadata = file.metadata();
    if (metadata.string(gguf::keys::kTokenizerModel) == "no_vocab") return;
    const size_t n_tokens = metadata.strings(gguf::keys::kTokens).size();
    if (n_tokens == 0 || static_cast<int64_t>(n_tokens) > info.n_vocab)
        throw ModelError(text(file.path(), ": ", gguf::keys::kTokens, " has ", n_tokens,
                              " tokens, but token_embd.weight has ", info.n_vocab, " rows"));
}

}  // namespace

std::shared_ptr<const LoadedModel> LoadedModel::open(const std::string& path, bool mmap) {
    std::shared_ptr<LoadedModel> loaded(new LoadedModel);
    loaded->file_ = gguf::File::open(path, {.mmap = mmap});
    loaded->weights_ = std::make_shared<const Weights>(loaded->file_);
    loaded->model_ = make_model(*loaded->weights_);
    check_vocabulary(*loaded->file_, loaded->info());
    return loaded;
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

std::shared_ptr<WeightStore> LoadedModel::weights_on(Backend& backend) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<WeightStore>& store = stores_[backend.packing()];
    if (!store) store = backend.make_weight_store(weights_);
    return store;
}

}  // namespace plait
