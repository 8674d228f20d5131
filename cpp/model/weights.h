// A model's tensors by name and number. Their bytes are read from the file when a backend loads
// them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/reader.h"
#include "graph/graph.h"
#include "tensor/weight_source.h"

namespace plait {

class Weights final : public WeightSource {
public:
    // Packed copies go where `kept` says, under the identity of the file.
    explicit Weights(std::shared_ptr<const gguf::File> file, KeptCopies kept = {});

    size_t count() const override { return file_->tensors().size(); }
    const std::string& name(WeightId id) const override { return tensor(id).name; }
    const TensorType& type(WeightId id) const override { return types_[id]; }
    void read(WeightId id, uint64_t begin, std::span<std::byte> target) const override;
    KeptCopies kept_copies() const override { return kept_; }

    const gguf::File& file() const { return *file_; }

    // Returns the weight. Throws ModelError if it is missing or has another shape. Dimensions of
    // size 1 are ignored: some files store them, and they do not change the order of elements.
    Weight get(const std::string& name, const Shape& shape) const;
    // The same, or an empty weight if the file has no such tensor.
    Weight find(const std::string& name, const Shape& shape) const;
    // As get(), but the weight has another shape of as many elements.
    Weight get_as(const std::string& name, const Shape& stored, const Shape& shape) const;
    bool has(std::string_view name) const { return file_->find(name) != nullptr; }
    // Returns the outermost dimension of a tensor; 0 if it is missing. For sizes that no
    // hyperparameter gives.
    int64_t rows(std::string_view name) const;

    // Throws ModelError if there is a tensor that neither get() nor find() has returned, because
    // the model would then ignore part of the file. Names that begin with one of `others` may be
    // unused.
    void expect_all_read(std::span<const std::string> others) const;

private:
    const gguf::TensorInfo& tensor(WeightId id) const { return file_->tensors()[id]; }

    std::shared_ptr<const gguf::File> file_;
    KeptCopies kept_;
    // By WeightId; written only while the model is loaded, as given_.
    mutable std::vector<TensorType> types_;
    mutable std::vector<bool> given_;  // by WeightId
};

// The weights of one layer: names below "blk.{layer}.", or below "{stack}.blk.{layer}." in models
// with several stacks of layers.
class LayerWeights {
public:
    LayerWeights(const Weights& weights, int layer)
        : weights_(weights), prefix_("blk." + std::to_string(layer) + ".") {}
    LayerWeights(const Weights& weights, const std::string& stack, int layer)
        : weights_(weights), prefix_(stack + ".blk." + std::to_string(layer) + ".") {}

    Weight get(std::string_view name, const Shape& shape) const {
        return weights_.get(prefix_ + std::string(name), shape);
    }
    Weight find(std::string_view name, const Shape& shape) const {
        return weights_.find(prefix_ + std::string(name), shape);
    }
    bool has(std::string_view name) const { return weights_.has(prefix_ + std::string(name)); }
    int64_t rows(std::string_view name) const { return weights_.rows(prefix_ + std::string(name)); }

private:
    const Weights& weights_;
    std::string prefix_;
};

}  // namespace plait
