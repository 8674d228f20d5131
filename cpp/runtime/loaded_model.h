// An open model file: its metadata, its architecture, and the packed copies of its weights, which
// contexts share.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/device_set.h"
#include "gguf/reader.h"
#include "model/model.h"
#include "model/vision/families.h"
#include "model/weights.h"
#include "runtime/facts.h"
#include "tensor/weight_source.h"

namespace plait {

class WeightCopies;

class LoadedModel {
public:
    struct Options {
        bool mmap = false;  // see gguf::OpenOptions
        KeptCopies packed;  // its identity is that of the file
        // Opens this part of an image encoder's file instead of a text model.
        std::optional<ImagePart> image_part = std::nullopt;
    };
    // Throws ModelError for a damaged or inconsistent file, UnsupportedError for an architecture or
    // tensor type without support. Tensor bytes are read when a context first needs them.
    static std::shared_ptr<const LoadedModel> open(const std::string& path, const Options& options);
    ~LoadedModel();

    const std::string& path() const { return file_->path(); }
    const gguf::File& file() const { return *file_; }
    const Model& model() const { return *model_; }
    const Weights& weights() const { return *weights_; }
    const ModelInfo& info() const { return model_->info(); }
    int64_t n_params() const;
    uint64_t nbytes() const { return file_->total_bytes(); }

    // Identifies the file in saved states. Computed on first use.
    const Facts& facts() const;

    // Returns the packed weights of each device. Backends with the same packing share a store,
    // which lives as long as the model.
    StoresByDevice weights_on(const DeviceSet& devices) const;

private:
    LoadedModel();

    std::shared_ptr<const gguf::File> file_;
    std::shared_ptr<const Weights> weights_;
    std::unique_ptr<const Model> model_;
    std::unique_ptr<WeightCopies> copies_;
    mutable std::mutex mutex_;
    mutable Facts facts_;
};

}  // namespace plait
