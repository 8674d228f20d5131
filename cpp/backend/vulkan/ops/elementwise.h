// Binds what shaders/elementwise.comp does.
#pragma once

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

// As the shader numbers them.
enum class Elementwise : uint32_t { add, sub, mul, scale, softcap, activate, gate, clamped_swiglu };

struct ElementwiseNumbers {
    float first = 0.0f, second = 0.0f;
    Activation activation = Activation::silu;
};

void bind_elementwise(Elementwise op, const Node& node, Binder& binder,
                      const ElementwiseNumbers& numbers = {});

}  // namespace plait::vulkan
