// Derivatives of the ops of graph/ops/elementwise.h that compute each element by itself.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "gradient/derivatives/derivatives.h"

namespace plait::gradient {
namespace {

// Which element of b belongs to an element of a, by the same rules as in the kernels; see ops::Add.
struct Broadcast {
    size_t repeat = 1, period = SIZE_MAX;
    size_t at(size_t i) const { return i / repeat % period; }
};

Broadcast broadcast_of(const Walk& walk, NodeId a, NodeId b) {
    const Shape &of_a = walk.node(a).type.shape, &of_b = walk.node(b).type.shape;
    const bool is_fixed = walk.node(b).extent == Extent::fixed;
    if (of_a == of_b) return {};
    if (of_b.elements() == 1) return {.period = 1};
    Broadcast broadcast;
    if (of_b[-1] == 1) {
        const bool by_row = of_b.rank == 2 && !is_fixed;
        broadcast.repeat = static_cast<size_t>(by_row ? walk.row_width(a) : of_a[-1]);
    }
    if (is_fixed) broadcast.period = static_cast<size_t>(of_b.elements());
    return broadcast;
}

void backward_sum(NodeId a, NodeId b, float sign, Gradient dy, Walk& walk) {
    const std::span<float> da = walk.gradient(a);
    for (size_t i = 0; i < da.size(); ++i) da[i] += dy[i];
    const std::span<float> db = walk.gradient(b);
    if (db.empty()) return;
    const Broadcast broadcast = broadcast_of(walk, a, b);
    for (size_t i = 0; i < dy.size(); ++i) db[broadcast.at(i)] += sign * dy[i];
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// A function and its derivative at one point.
struct Point {
    double value, slope;
};

Point gelu_tanh(double x) {
    const double root = std::sqrt(2.0 / std::numbers::pi);
    const double t = std::tanh(root * (x + 0.044715 * x * x * x));
    const double slope = root * (1.0 + 3.0 * 0.044715 * x * x);
    return {0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope};
}

Point gelu(double x) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    return {x * below, below + x * density};
}

Point activation_at(Activation activation, double x) {
    switch (activation) {
    case Activation::silu: {
        const double s = sigmoid(x);
        return {x * s, s * (1.0 + x * (1.0 - s))};
    }
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::relu: return {std::max(x, 0.0), x > 0.0 ? 1.0 : 0.0};
    case Activation::relu_squared: {
        const double positive = std::max(x, 0.0);
        return {positive * positive, 2.0 * positive};
    }
    case Activation::sigmoid: {
        const double s = sigmoid(x);
        return {s, s * (1.0 - s)};
    }
    case Activation::tanh: {
        const double t = std::tanh(x);
        return {t, 1.0 - t * t};
    }
    case Activation::softplus:
        return {std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))), sigmoid(x)};
    case Activation::exp: return {std::exp(x), std::exp(x)};
    }
    return {};
}

}  // namespace

void Derivative<ops::Add>::backward(const ops::Add& op, NodeId, Gradient dy, Walk& walk) {
    backward_sum(op.a, op.b, 1.0f, dy, walk);
}

void Derivative<ops::Sub>::backward(const ops::Sub& op, NodeId, Gradient dy, Walk& walk) {
    backward_sum(op.a, op.b, -1.0f, dy, walk);
}

void Derivative<ops::Mul>::backward(const ops::Mul& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<const float> a = walk.value(op.a), b = walk.value(op.b);
    const Broadcast broadcast = broadcast_of(walk, op.a, op.b);
    const std::span<float> da = walk.gradient(op.a);
    for (size_t i = 0; i < da.size(); ++i) da[i] += dy[i] * b[broadcast.at(i)];
    const std::span<float> db = walk.gradient(op.b);
    if (db.empty()) return;
    for (size_t i = 0; i < dy.size(); ++i) db[broadcast.at(i)] += dy[i] * a[i];
}

void Derivative<ops::Scale>::backward(const ops::Scale& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += op.factor * dy[i];
}

void Derivative<ops::Softcap>::backward(const ops::Softcap& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dx.size(); ++i) {
        const double t = std::tanh(double{x[i]} / op.cap);
        dx[i] += static_cast<float>(dy[i] * (1.0 - t * t));
    }
}

void Derivative<ops::Clamp>::backward(const ops::Clamp& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dx.size(); ++i)
        if (std::abs(x[i]) <= op.limit) dx[i] += dy[i];
}

void Derivative<ops::Activate>::backward(const ops::Activate& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<const float> x = walk.value(op.x);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dx.size(); ++i)
        dx[i] += static_cast<float>(dy[i] * activation_at(op.activation, x[i]).slope);
}

void Derivative<ops::Gate>::backward(const ops::Gate& op, NodeId, Gradient dy, Walk& walk) {
    const std::span<const float> g = walk.value(op.g), up = walk.value(op.up);
    const std::span<float> dg = walk.gradient(op.g), dup = walk.gradient(op.up);
    for (size_t i = 0; i < dy.size(); ++i) {
        const Point f = activation_at(op.activation, g[i]);
        if (!dg.empty()) dg[i] += static_cast<float>(dy[i] * up[i] * f.slope);
        if (!dup.empty()) dup[i] += static_cast<float>(dy[i] * f.value);
    }
}

void Derivative<ops::ClampedSwiglu>::backward(const ops::ClampedSwiglu& op, NodeId, Gradient dy,
                                              Walk& walk) {
    const std::span<const float> g = walk.value(op.g), up = walk.value(op.up);
    const std::span<float> dg = walk.gradient(op.g), dup = walk.gradient(op.up);
    for (size_t i = 0; i < dy.size(); ++i) {
        const double low = std::min(g[i], op.limit);
        const double clamped = std::clamp(up[i], -op.limit, op.limit);
        const double s = sigmoid(op.alpha * low);
        const double slope = s * (1.0 + op.alpha * low * (1.0 - s));
        if (!dg.empty() && g[i] <= op.limit)
            dg[i] += static_cast<float>(dy[i] * slope * (clamped + 1.0));
        if (!dup.empty() && std::abs(up[i]) <= op.limit)
            dup[i] += static_cast<float>(dy[i] * low * s);
    }
}

}  // namespace plait::gradient
