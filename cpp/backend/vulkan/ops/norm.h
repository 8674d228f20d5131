// Binds what shaders/norm.comp does.
#pragma once

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

// As the shader numbers them.
enum class Norm : uint32_t { rms_norm, layer_norm, l2_norm, row_sum };

void bind_norm(Norm norm, const Node& node, Binder& binder, float epsilon);

}  // namespace plait::vulkan
