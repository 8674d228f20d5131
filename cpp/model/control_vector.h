// A control vector's file: general.architecture "controlvector", tensors "direction.N", what is added
// to the output of layer N. As llama.cpp's cvector-generator and repeng write them.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/reader.h"

namespace plait {

struct ControlVector {
    std::vector<float> rows;  // [n_rows, width] by layer from 0; zeros where the file has none
    int64_t width = 0;
};
// ModelError where the file is none.
ControlVector read_control_vector(const gguf::File& file);

}  // namespace plait
