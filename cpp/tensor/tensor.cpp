#include "tensor/tensor.h"

#include "base/text.h"

namespace plait {

std::string to_string(const Shape& shape) {
    std::string out = "[";
    for (int axis = 0; axis < shape.rank; ++axis) {
        if (axis > 0) out += ", ";
        out += std::to_string(shape[axis]);
    }
    return out + "]";
}

uint64_t TensorType::bytes() const {
    if (shape.rank == 0) return row_bytes(dtype, 1);
    const auto elements = static_cast<uint64_t>(shape.elements());
    if (elements == 0) return 0;
    const auto row = static_cast<uint64_t>(shape[-1]);
    return elements / row * row_bytes(dtype, row);
}

std::string to_string(const TensorType& type) {
    return text(info(type.dtype).name, " ", to_string(type.shape));
}

}  // namespace plait
