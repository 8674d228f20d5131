// Control vector files, as written by llama.cpp's cvector-generator and by repeng:
// general.architecture is "controlvector", and the tensor "direction.N" is added to the output of
// layer N.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/reader.h"

namespace plait {

struct ControlVector {
    std::vector<float>
        rows;  // [n_rows, width], by layer from 0; zeros if the file has no direction
    int64_t width = 0;
};
// Throws ModelError if the file is not a control vector.
ControlVector read_control_vector(const gguf::File& file);

}  // namespace plait
