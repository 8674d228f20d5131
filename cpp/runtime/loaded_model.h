// A model file, opened: its metadata, its architecture, and the packed copies of its weights that
// contexts share.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/model.h"
#include "model/weights.h"
#include "runtime/devices/weight_copies.h"
#include "runtime/state/facts.h"

namespace plait {

class LoadedModel {
public:
    // Throws ModelError (what is wrong, where) or UnsupportedError (an architecture or type that we
    // do not have). Tensor bytes are read when a context first needs them.
    static std::shared_ptr<const LoadedModel> open(const std::string& path, bool mmap);

    const std::string& path() const { return file_->path(); }
    const gguf::File& file() const { return *file_; }
    const Model& model() const { return *model_; }
    const Weights& weights() const { return *weights_; }
    const ModelInfo& info() const { return model_->info(); }
    int64_t n_params() const;
    uint64_t nbytes() const { return file_->total_bytes(); }

    // What a saved state says of the file; read when first asked for, and kept.
    const Facts& facts() const;

    // One store for all backends that pack alike; kept as long as the model.
    StoresByDevice weights_on(const DeviceSet& devices) const { return copies_->on(devices); }

private:
    LoadedModel() = default;

    std::shared_ptr<const gguf::File> file_;
    std::shared_ptr<const Weights> weights_;
    std::unique_ptr<const Model> model_;
    std::unique_ptr<WeightCopies> copies_;
    mutable std::mutex mutex_;
    mutable Facts facts_;
};

}  // namespace plait
