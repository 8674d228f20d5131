// How far one position turns each pair of a head, for shaders/lib/turns.glsl.
#pragma once

#include <optional>

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

// [n_rot / 2] u64: of a turn, in units of 2^-64. Frequencies are base^(-2 i / n_rot) / factor, times
// what interpolation leaves of them: the scale throughout, or by YaRN (arXiv:2309.00071 section 3.2)
// a ramp over pairs from 1 to the scale. `factors` are a weight, and optional.
Ref turns(const Rope& rope, std::optional<NodeId> factors, Binder& binder);

}  // namespace plait::vulkan
