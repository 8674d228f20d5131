// The head of one GGUF file: everything before the tensor data, parsed and validated.
#pragma once

#include <vector>

#include "gguf/descriptor.h"
#include "gguf/metadata.h"
#include "gguf/reader.h"

namespace plait::gguf {

struct Head {
    Metadata metadata;
    std::vector<TensorInfo> tensors;  // shard left 0
};

// Throws ModelError or UnsupportedError; on return every tensor lies whole within the file, aligned,
// apart from every other, with a name of its own.
Head read_head(const Descriptor& file);

}  // namespace plait::gguf
