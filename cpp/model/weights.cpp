#include "model/weights.h"

#include <algorithm>

#include "base/error.h"
#include "base/stop.h"
#include "base/text.h"
#include "gguf/keys.h"

namespace plait {
namespace {

Shape without_ones(const Shape& shape) {
    Shape result;
    for (int i = 0; i < shape.rank; ++i)
        if (shape[i] != 1) result.dims[result.rank++] = shape[i];
    return result;
}

}  // namespace

Weights::Weights(std::shared_ptr<const gguf::File> file, KeptCopies kept)
    : file_(std::move(file)), kept_(std::move(kept)), given_(file_->tensors().size()) {
    kept_.identity = file_->identity();
    for (const gguf::TensorInfo& tensor : file_->tensors()) types_.push_back(tensor.type);
}

void Weights::read(WeightId id, uint64_t begin, std::span<std::byte> target) const {
    check_stop();
    file_->read(tensor(id), begin, target);
}

Weight Weights::get(const std::string& name, const Shape& shape) const {
    const gguf::TensorInfo* found = file_->find(name);
    if (found == nullptr)
        throw ModelError(
            text(file_->path(), ": tensor ", name, " is missing; expected ", to_string(shape)));
    if (without_ones(found->type.shape) != without_ones(shape))
        throw ModelError(text(file_->path(), ": tensor ", name, " has shape ",
                              to_string(found->type.shape), ", expected ", to_string(shape)));
    const auto id = static_cast<WeightId>(found - file_->tensors().data());
    given_[id] = true;
    return {id, {found->type.dtype, shape}};
}

Weight Weights::get_as(const std::string& name, const Shape& stored, const Shape& shape) const {
    Weight weight = get(name, stored);
    PLAIT_CHECK(shape.elements() == stored.elements());
    types_[weight.id].shape = weight.type.shape = shape;
    return weight;
}

Weight Weights::find(const std::string& name, const Shape& shape) const {
    return has(name) ? get(name, shape) : Weight{};
}

int64_t Weights::rows(std::string_view name) const {
    const gguf::TensorInfo* found = file_->find(name);
    return found == nullptr ? 0 : found->type.shape[0];
}

void Weights::expect_all_read(std::span<const std::string> others) const {
    for (size_t id = 0; id < given_.size(); ++id) {
        const std::string& name = file_->tensors()[id].name;
        const auto holds = [&](const std::string& prefix) { return name.starts_with(prefix); };
        if (!given_[id] && std::ranges::none_of(others, holds))
            throw ModelError(text(file_->path(), ": tensor ", name,
                                  " does not belong to a model of ", "architecture ",
                                  file_->metadata().string(gguf::keys::kArchitecture),
                                  " with these hyperparameters"));
    }
}

}  // namespace plait
