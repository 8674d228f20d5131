// How well quantised normal values must come back.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace plait::test {

struct Fit {
    DType dtype;
    double of_variance;  // greatest mean squared error, as a part of the variance
};

inline std::vector<float> normal_values(size_t count, float deviation) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

// The name of a test whose parameter has a type.
template <typename Param>
std::string name_of(const testing::TestParamInfo<Param>& test) {
    return std::string(info(test.param.dtype).name);
}

}  // namespace plait::test
