// A low-rank adapter (LoRA), loaded from a file for one model. The format is that of llama.cpp's
// converter: general.type is "adapter", adapter.type is "lora", and each changed weight NAME has
// the tensors NAME.lora_a and NAME.lora_b.
// https://github.com/ggml-org/llama.cpp/blob/master/convert_lora_to_gguf.py
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/rewrite.h"
#include "model/weights.h"
#include "runtime/devices/weight_copies.h"

namespace plait {

class LoadedModel;

// Immutable. Contexts of the same model share it.
class Adapter {
public:
    // The product B A that is added to a weight. `base` is an id of the model file, `a` and `b`
    // have ids of the adapter file.
    struct Delta {
        WeightId base;
        Weight a, b;
        float factor;  // alpha / r, or alpha / sqrt(r) if rank-stabilized; 1 without alpha
    };

    // Throws ModelError, with the file and the tensor, if the file is not an adapter of this model.
    // `rank_stabilized` (arXiv:2312.03732) overrides the file; nullopt: as in the file.
    static std::shared_ptr<const Adapter> open(const std::string& path,
                                               std::shared_ptr<const LoadedModel> model,
                                               std::optional<bool> rank_stabilized);

    const std::string& path() const { return weights_->file().path(); }
    const gguf::File& file() const { return weights_->file(); }
    const LoadedModel& model() const { return *model_; }
    std::span<const Delta> deltas() const { return deltas_; }
    float alpha() const { return alpha_; }  // 0 if the file has none
    // Tokens that activate an activated adapter (arXiv:2504.12397); empty for other adapters.
    std::span<const int32_t> invocation_tokens() const { return invocation_tokens_; }

    // Increases with each opened adapter. Several adapters are summed in this order.
    uint64_t number() const { return number_; }
    // Identifies the adapter in saved states.
    const std::string& identity() const { return identity_; }

    StoresByDevice weights_on(const DeviceSet& devices) const { return copies_->on(devices); }

private:
    Adapter() = default;
    void read_metadata();
    void read_delta(const std::string& name, bool rank_stabilized);

    std::shared_ptr<const LoadedModel> model_;
    std::shared_ptr<const Weights> weights_;
    std::unique_ptr<WeightCopies> copies_;
    std::vector<Delta> deltas_;
    std::vector<int32_t> invocation_tokens_;
    float alpha_ = 0.0f;
    uint64_t number_ = 0;
    std::string identity_;
};

}  // namespace plait
