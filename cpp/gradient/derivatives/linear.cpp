// Derivatives of the products of graph/ops/linear.h. Weights are dequantised a panel of rows at a
// time, and panels whose rows of the gradient are all zero are not read.
#include <algorithm>
#include <bit>
#include <vector>

#include "gradient/derivatives/derivatives.h"

namespace plait::gradient {
namespace {

constexpr size_t kPanelFloats = 32768;  // 128 KiB, which fits the second cache of most processors

// to[i] += sum over j of factors[j] * rows[j][i], in the order of j.
void add_rows(float* __restrict to, const float* __restrict factors, const float* __restrict rows,
              size_t n_rows, size_t width) {
    size_t j = 0;
    for (; j + 4 <= n_rows; j += 4) {
        const float *a = rows + j * width, *b = a + width, *c = b + width, *d = c + width;
        const float fa = factors[j], fb = factors[j + 1], fc = factors[j + 2], fd = factors[j + 3];
        for (size_t i = 0; i < width; ++i) to[i] += fa * a[i] + fb * b[i] + fc * c[i] + fd * d[i];
    }
    for (; j < n_rows; ++j)
        for (size_t i = 0; i < width; ++i) to[i] += factors[j] * rows[j * width + i];
}

// Vectors of one length, `stride` floats apart.
template <typename T>
struct Vectors {
    T* first;
    size_t stride;
    T* at(size_t i) const { return first + i * stride; }
};

// dx += dy W for the rows [first_row, first_row + out) of a weight. `dx` and `dy` have n vectors.
void multiply_back(Walk& walk, NodeId weight, int64_t first_row, size_t out, size_t in, size_t n,
                   Vectors<float> dx, Vectors<const float> dy) {
    const WeightId id = std::get<ops::Weight>(walk.node(weight).op).id;
    const size_t rows = std::max<size_t>(4, kPanelFloats / in / 4 * 4);
    std::vector<float> panel;
    for (size_t begin = 0; begin < out; begin += rows) {
        const size_t count = std::min(rows, out - begin);
        const auto is_zero = [&](size_t i) {
            return std::all_of(dy.at(i) + begin, dy.at(i) + begin + count,
                               [](float g) { return g == 0.0f; });
        };
        size_t i = 0;
        while (i < n && is_zero(i)) ++i;
        if (i == n) continue;
        walk.step().check_stop();
        panel.resize(count * in);
        walk.step().read_weight(id, first_row + static_cast<int64_t>(begin), panel);
        for (; i < n; ++i)
            if (!is_zero(i)) add_rows(dx.at(i), dy.at(i) + begin, panel.data(), count, in);
    }
}

}  // namespace

void Derivative<ops::Linear>::backward(const ops::Linear& op, NodeId node, Gradient dy,
                                       Walk& walk) {
    const auto out = static_cast<size_t>(walk.row_width(node));
    const auto in = static_cast<size_t>(walk.row_width(op.x));
    multiply_back(walk, op.weight, 0, out, in, static_cast<size_t>(walk.rows(node)),
                  {walk.gradient(op.x).data(), in}, {dy.data(), out});
}

void Derivative<ops::HeadLinear>::backward(const ops::HeadLinear& op, NodeId node, Gradient dy,
                                           Walk& walk) {
    const Shape& shape = walk.node(op.weight).type.shape;  // [h, out, in]
    const auto heads = static_cast<size_t>(shape[0]), out = static_cast<size_t>(shape[1]),
               in = static_cast<size_t>(shape[2]);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t h = 0; h < heads; ++h)
        multiply_back(walk, op.weight, static_cast<int64_t>(h * out), out, in,
                      static_cast<size_t>(walk.rows(node)), {dx.data() + h * in, heads * in},
                      {dy.data() + h * out, heads * out});
}

// The products of each expert are computed together, so that its matrix is read once.
void Derivative<ops::ExpertLinear>::backward(const ops::ExpertLinear& op, NodeId, Gradient dy,
                                             Walk& walk) {
    const Shape& shape = walk.node(op.weight).type.shape;  // [e, out, in]
    const auto n_experts = static_cast<size_t>(shape[0]), out = static_cast<size_t>(shape[1]),
               in = static_cast<size_t>(shape[2]);
    const auto used = static_cast<size_t>(walk.node(op.routes).type.shape[1]);
    const std::span<const float> routes = walk.value(op.routes);
    std::vector<std::vector<size_t>> products(n_experts);  // by expert: rows of dy
    for (size_t i = 0; i < dy.size() / out; ++i)
        products[static_cast<size_t>(std::bit_cast<int32_t>(routes[2 * i]))].push_back(i);
    const bool has_own_x =
        walk.node(op.x).type.shape.rank == 3;  // a row for each expert of a token
    const std::span<float> dx = walk.gradient(op.x);
    std::vector<float> of_expert, sums;
    for (size_t e = 0; e < n_experts && !dx.empty(); ++e) {
        of_expert.clear();
        for (const size_t i : products[e])
            of_expert.insert(of_expert.end(), dy.begin() + static_cast<std::ptrdiff_t>(i * out),
                             dy.begin() + static_cast<std::ptrdiff_t>((i + 1) * out));
        sums.assign(products[e].size() * in, 0.0f);
        multiply_back(walk, op.weight, static_cast<int64_t>(e * out), out, in, products[e].size(),
                      {sums.data(), in}, {of_expert.data(), out});
        for (size_t p = 0; p < products[e].size(); ++p) {
            const size_t row = has_own_x ? products[e][p] : products[e][p] / used;
            for (size_t k = 0; k < in; ++k) dx[row * in + k] += sums[p * in + k];
        }
    }
}

void Derivative<ops::Mix>::backward(const ops::Mix& op, NodeId node, Gradient dy, Walk& walk) {
    const Shape& shape = walk.node(op.weights).type.shape;  // [n, i, j]
    const auto to = static_cast<size_t>(shape[1]), from = static_cast<size_t>(shape[2]);
    const auto m = static_cast<size_t>(walk.node(op.x).type.shape[2]);
    const std::span<const float> x = walk.value(op.x), weights = walk.value(op.weights);
    const std::span<float> dx = walk.gradient(op.x), dw = walk.gradient(op.weights);
    for (size_t t = 0; t < static_cast<size_t>(walk.rows(node)); ++t) {
        for (size_t i = 0; i < to; ++i) {
            const float* g = dy.data() + (t * to + i) * m;
            for (size_t j = 0; j < from; ++j) {
                const size_t w = (t * to + i) * from + j, at = (t * from + j) * m;
                double sum = 0.0;
                for (size_t k = 0; k < m; ++k) {
                    if (!dx.empty()) dx[at + k] += weights[w] * g[k];
                    sum += double{x[at + k]} * g[k];
                }
                if (!dw.empty()) dw[w] += static_cast<float>(sum);
            }
        }
    }
}

}  // namespace plait::gradient
