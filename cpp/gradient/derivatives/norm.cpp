// Derivatives of the norms of graph/ops/norm.h. Sums over a row are in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gradient/derivatives/derivatives.h"

namespace plait::gradient {
namespace {

// Calls row(first element, elements) for each vector of the node's last axis.
template <typename Row>
void for_each_vector(const Walk& walk, NodeId id, Row row) {
    const auto m = static_cast<size_t>(walk.node(id).type.shape[-1]);
    for (size_t at = 0; at < walk.elements(id); at += m) row(at, m);
}

// The weight that multiplies element i of a value; norms without a weight have none.
struct NormWeight {
    std::span<const float> values;
    float at(size_t i) const { return values.empty() ? 1.0f : values[i % values.size()]; }
};

NormWeight norm_weight(Walk& walk, const OptionalOperand& weight) {
    return {weight ? walk.value(*weight) : std::span<const float>{}};
}

}  // namespace

// With r = 1 / rms(x) and g = dy weight: dx = r (g - x r^2 mean(g x)).
void Derivative<ops::RmsNorm>::backward(const ops::RmsNorm& op, NodeId node, Gradient dy,
                                        Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const NormWeight weight = norm_weight(walk, op.weight);
    const std::span<float> dx = walk.gradient(op.x);
    for_each_vector(walk, node, [&](size_t at, size_t m) {
        double squares = 0.0, product = 0.0;
        for (size_t i = at; i < at + m; ++i) {
            squares += double{x[i]} * x[i];
            product += double{dy[i]} * weight.at(i) * x[i];
        }
        const auto n = static_cast<double>(m);
        const double r = 1.0 / std::sqrt(squares / n + op.epsilon);
        const double along = r * r * product / n;
        for (size_t i = at; i < at + m; ++i)
            dx[i] += static_cast<float>(r * (double{dy[i]} * weight.at(i) - x[i] * along));
    });
}

// With z = (x - mean) r, r = 1 / sqrt(variance + epsilon) and g = dy weight:
// dx = r (g - mean(g) - z mean(g z)).
void Derivative<ops::LayerNorm>::backward(const ops::LayerNorm& op, NodeId node, Gradient dy,
                                          Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const NormWeight weight = norm_weight(walk, op.weight);
    const std::span<float> dx = walk.gradient(op.x);
    for_each_vector(walk, node, [&](size_t at, size_t m) {
        const auto n = static_cast<double>(m);
        double mean = 0.0, squares = 0.0;
        for (size_t i = at; i < at + m; ++i) mean += x[i] / n;
        for (size_t i = at; i < at + m; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const double r = 1.0 / std::sqrt(squares / n + op.epsilon);
        double mean_g = 0.0, mean_gz = 0.0;
        for (size_t i = at; i < at + m; ++i) {
            const double g = double{dy[i]} * weight.at(i);
            mean_g += g / n;
            mean_gz += g * (x[i] - mean) * r / n;
        }
        for (size_t i = at; i < at + m; ++i) {
            const double g = double{dy[i]} * weight.at(i), z = (x[i] - mean) * r;
            dx[i] += static_cast<float>(r * (g - mean_g - z * mean_gz));
        }
    });
}

// dx = (dy - y (y . dy)) / |x|, or dy / epsilon where |x| is smaller.
void Derivative<ops::L2Norm>::backward(const ops::L2Norm& op, NodeId node, Gradient dy,
                                       Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const std::span<float> dx = walk.gradient(op.x);
    for_each_vector(walk, node, [&](size_t at, size_t m) {
        double squares = 0.0, product = 0.0;
        for (size_t i = at; i < at + m; ++i) {
            squares += double{x[i]} * x[i];
            product += double{dy[i]} * x[i];
        }
        const double length = std::max(std::sqrt(squares), double{op.epsilon});
        const double along = std::sqrt(squares) > op.epsilon ? product / squares : 0.0;
        for (size_t i = at; i < at + m; ++i)
            dx[i] += static_cast<float>((dy[i] - x[i] * along) / length);
    });
}

void Derivative<ops::RowSum>::backward(const ops::RowSum& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<float> dx = walk.gradient(op.x);
    for_each_vector(walk, op.x, [&](size_t at, size_t m) {
        for (size_t i = at; i < at + m; ++i) dx[i] += dy[at / m];
    });
}

}  // namespace plait::gradient
