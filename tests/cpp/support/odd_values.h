// Floats that are not numbers or not finite.
#pragma once

#include <limits>

namespace plait {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace plait
