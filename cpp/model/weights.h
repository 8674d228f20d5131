// A model's tensors by name and number. Bytes stay in the file until a backend asks for them.
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
    explicit Weights(std::shared_ptr<const gguf::File> file);

    size_t count() const override { return file_->tensors().size(); }
    const std::string& name(WeightId id) const override { return tensor(id).name; }
    const TensorType& type(WeightId id) const override { return tensor(id).type; }
    void read(WeightId id, uint64_t begin, std::span<std::byte> target) const override;

    const gguf::File& file() const { return *file_; }

    // A weight of exactly this shape, or ModelError naming tensor, shape and what was expected.
    // Sizes of one at the front are taken as absent, those of a vector anywhere, as some files keep
    // them.
    Weight get(const std::string& name, const Shape& shape) const;
    // Nothing where the file has no such tensor.
    Weight find(const std::string& name, const Shape& shape) const;
    bool has(std::string_view name) const { return file_->find(name) != nullptr; }

    // ModelError naming a tensor that no get() or find() gave since this was made: a model that is
    // silent on a part of its file is not that file's model. Tensors below one of `others` may stay.
    void expect_all_read(std::span<const std::string> others) const;

private:
    const gguf::TensorInfo& tensor(WeightId id) const { return file_->tensors()[id]; }

    std::shared_ptr<const gguf::File> file_;
    mutable std::vector<bool> given_;  // by WeightId; written only while the model is made
};

// The weights of one layer: names below "blk.{layer}.", or "{stack}.blk.{layer}." where a model has
// several stacks of layers.
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

private:
    const Weights& weights_;
    std::string prefix_;
};

}  // namespace plait
