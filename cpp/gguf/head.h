// The head of a GGUF file, that is, everything before the tensor data, parsed and validated.
#pragma once

#include <vector>

#include "gguf/descriptor.h"
#include "gguf/metadata.h"
#include "gguf/reader.h"

namespace plait::gguf {

struct Head {
    Metadata metadata;
    std::vector<TensorInfo> tensors;  // `shard` is 0
};

// Throws ModelError or UnsupportedError. On return, tensors are aligned, lie within the file and do
// not overlap; duplicate names are not checked here.
Head read_head(const Descriptor& file);

}  // namespace plait::gguf
