// Parses and validates the head of a GGUF file, which is everything before the tensor data.
#pragma once

#include <vector>

#include "gguf/descriptor.h"
#include "gguf/metadata.h"
#include "gguf/reader.h"

namespace plait::gguf {

struct Head {
    Metadata metadata;
    std::vector<TensorInfo> tensors;  // with `shard` 0
};

// Throws ModelError or UnsupportedError if the head is invalid. The returned tensors are aligned,
// lie within the file and do not overlap. Their names may have duplicates.
Head read_head(const Descriptor& file);

}  // namespace plait::gguf
