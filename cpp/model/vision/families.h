// The families of image encoders, by the projector type that their files name.
#pragma once

#include <memory>

#include "model/model.h"

namespace plait {

// The two models of an image encoder's file: patches to patches, and joined patches to embeddings.
enum class ImagePart : uint8_t { tower, projector };

// Makes one of them. Throws UnsupportedError, which lists the known types, if clip.projector_type is
// not known, and ModelError if the file is damaged. "gemma3" has no model for its projector, whose
// matrix is stored transposed.
std::unique_ptr<Model> make_image_model(const Weights& weights, ImagePart part);

}  // namespace plait
