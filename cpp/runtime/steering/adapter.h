// A low-rank adapter, opened from its file for one model. Files are those of llama.cpp's converter:
// general.type "adapter", adapter.type "lora", and for each weight that it changes NAME.lora_a and
// NAME.lora_b. https://github.com/ggml-org/llama.cpp/blob/master/convert_lora_to_gguf.py
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/low_rank.h"
#include "runtime/devices/weight_copies.h"
#include "runtime/loaded_model.h"

namespace plait {

// Immutable; shared between contexts of its model.
class Adapter {
public:
    // B A of a weight, by numbers of the two files.
    struct Delta {
        WeightId base;
        Weight a, b;
        float factor;  // alpha / r, or alpha / sqrt(r); 1 where the file says no alpha
    };

    // ModelError, naming file and tensor, where it is no adapter, or one of another model.
    // `rank_stabilized` (arXiv:2312.03732): nothing is as the file says.
    static std::shared_ptr<const Adapter> open(const std::string& path,
                                               std::shared_ptr<const LoadedModel> model,
                                               std::optional<bool> rank_stabilized);

    const std::string& path() const { return weights_->file().path(); }
    const gguf::File& file() const { return weights_->file(); }
    const LoadedModel& model() const { return *model_; }
    std::span<const Delta> deltas() const { return deltas_; }
    float alpha() const { return alpha_; }  // 0: the file says none
    // Those that switch it on, of an activated adapter (arXiv:2504.12397); else none.
    std::span<const int32_t> invocation_tokens() const { return invocation_tokens_; }

    // Counts adapters as they are opened: the order in which several are summed.
    uint64_t number() const { return number_; }
    // What a saved state says of it.
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
