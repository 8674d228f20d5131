// Derivatives of ops that move elements, cut or join rows, or rotate heads.
#include "gradient/derivatives/derivatives.h"
#include "tensor/blocks/hadamard.h"

namespace plait::gradient {
namespace {

void add_to(std::span<float> dx, Gradient dy) {
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += dy[i];
}

}  // namespace

void Derivative<ops::Reshape>::backward(const ops::Reshape& op, NodeId, Gradient dy, Walk& walk) {
    add_to(walk.gradient(op.x), dy);
}

void Derivative<ops::StoreRows>::backward(const ops::StoreRows& op, NodeId, Gradient dy,
                                          Walk& walk) {
    add_to(walk.gradient(op.x), dy);
}

void Derivative<ops::Slice>::backward(const ops::Slice& op, NodeId node, Gradient dy, Walk& walk) {
    const auto whole = static_cast<size_t>(walk.node(op.x).type.shape[-1]);
    const auto part = static_cast<size_t>(walk.node(node).type.shape[-1]);
    const auto begin = static_cast<size_t>(op.begin);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dy.size(); ++i) dx[i / part * whole + begin + i % part] += dy[i];
}

void Derivative<ops::Concat>::backward(const ops::Concat& op, NodeId node, Gradient dy,
                                       Walk& walk) {
    const Shape &a = walk.node(op.a).type.shape, &b = walk.node(op.b).type.shape;
    const auto of_a = static_cast<size_t>(a[-1]), of_b = static_cast<size_t>(b[-1]);
    // One head of b may serve all heads of a.
    const size_t repeat = b.rank == 3 && b[1] == 1 ? static_cast<size_t>(a[1]) : 1;
    const std::span<float> da = walk.gradient(op.a), db = walk.gradient(op.b);
    const size_t n = walk.elements(node) / (of_a + of_b);
    for (size_t v = 0; v < n; ++v) {
        const float* g = dy.data() + v * (of_a + of_b);
        for (size_t i = 0; i < of_a && !da.empty(); ++i) da[v * of_a + i] += g[i];
        for (size_t i = 0; i < of_b && !db.empty(); ++i) db[v / repeat * of_b + i] += g[of_a + i];
    }
}

void Derivative<ops::SelectRows>::backward(const ops::SelectRows& op, NodeId node, Gradient dy,
                                           Walk& walk) {
    const std::span<const int32_t> rows = walk.integers(op.rows);
    const auto width = static_cast<size_t>(walk.row_width(node));
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t i = 0; i < dy.size(); ++i)
        dx[static_cast<size_t>(rows[i / width]) * width + i % width] += dy[i];
}

void Derivative<ops::EditRows>::backward(const ops::EditRows& op, NodeId node, Gradient dy,
                                         Walk& walk) {
    const std::span<const float> x = walk.value(op.x), rows = walk.value(op.rows);
    const std::span<const int32_t> picks = walk.integers(op.picks);
    const auto width = static_cast<size_t>(walk.row_width(node));
    const bool by_row = walk.node(op.rows).type.shape == walk.node(op.x).type.shape;
    const std::span<float> dx = walk.gradient(op.x), d_rows = walk.gradient(op.rows);
    const auto add = [](std::span<float> to, size_t i, float slope) {
        if (!to.empty()) to[i] += slope;
    };
    for (size_t i = 0; i < dy.size(); ++i) {
        const int32_t first = picks[2 * (i / width)];
        const auto change = static_cast<RowChange>(picks[2 * (i / width) + 1]);
        const size_t at = by_row || first < 0 ? i : static_cast<size_t>(first) + i % width;
        const bool is_scaled = first >= 0 && change == RowChange::scale;
        if (first < 0 || change != RowChange::replace)
            add(dx, i, is_scaled ? dy[i] * rows[at] : dy[i]);
        if (first >= 0 && by_row) add(d_rows, i, is_scaled ? dy[i] * x[i] : dy[i]);
    }
}

// A rotation is a matrix whose transpose rotates back, with the same magnitude.
void Derivative<ops::Rope>::backward(const ops::Rope& op, NodeId node, Gradient dy, Walk& walk) {
    const Shape& shape = walk.node(node).type.shape;  // [n, h, d]
    const auto heads = static_cast<size_t>(shape[1]), width = static_cast<size_t>(shape[2]);
    const auto rotated = static_cast<size_t>(op.n_rot), pairs = rotated / 2;
    const std::span<const float> table = walk.value(op.table);
    const std::span<float> dx = walk.gradient(op.x);
    for (size_t v = 0; v < dy.size() / width; ++v) {
        const float* g = dy.data() + v * width;
        float* to = dx.data() + v * width;
        const float* turns = table.data() + v / heads * rotated;  // cos and sin of each pair
        for (size_t p = 0; p < pairs; ++p) {
            const size_t a = op.interleaved ? 2 * p : p, b = op.interleaved ? a + 1 : p + pairs;
            const float c = turns[2 * p], s = turns[2 * p + 1];
            to[a] += g[a] * c + g[b] * s;
            to[b] += g[b] * c - g[a] * s;
        }
        for (size_t i = rotated; i < width; ++i) to[i] += g[i];
    }
}

void Derivative<ops::Hadamard>::backward(const ops::Hadamard& op, NodeId, Gradient dy, Walk& walk) {
    std::vector<float> turned(dy.begin(), dy.end());  // the matrix is symmetric
    hadamard(turned.data(), static_cast<int64_t>(turned.size()), op.block);
    add_to(walk.gradient(op.x), turned);
}

}  // namespace plait::gradient
