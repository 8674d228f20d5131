// Products with the matrices of experts, and the weighted sum of their results.
#include "backend/cpu/kernels/products/experts.h"

#include "backend/cpu/kernels/common/claim.h"
#include "backend/cpu/kernels/products/product.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// A task is a group of pairs by some panels. A group is an expert's pairs. If there are fewer pairs
// than experts, group number i has the pairs with the expert of pair i, unless an earlier pair has
// the same expert; then it is empty.
struct Groups {
    int64_t pairs, groups, panels, panel_tasks;
};

Groups groups_of(const ExpertLinearArgs& args, const Frame& frame) {
    Groups g{};
    g.pairs = frame.rows(args.extent, args.fixed_rows) * args.used;
    g.groups = g.pairs < args.weight.matrices ? g.pairs : args.weight.matrices;
    const ProductCut cut =
        cut_product(args.weight, g.pairs / args.weight.matrices + 1, 1, args.threads);
    g.panels = cut.panels;
    g.panel_tasks = cut.panel_tasks;
    return g;
}

// Lists the pairs of a group in `rows` and returns their number. Loads with acquire, as
// Claim::holds() requires.
int64_t gather(const Groups& g, const int32_t* routes, int64_t group, int32_t* rows,
               int32_t* expert) {
    const bool by_pair = g.groups == g.pairs;
    const auto expert_of = [&](int64_t pair) {
        return __atomic_load_n(&routes[2 * pair], __ATOMIC_ACQUIRE);
    };
    *expert = by_pair ? expert_of(group) : static_cast<int32_t>(group);
    int64_t n = 0;
    for (int64_t pair = 0; pair < g.pairs; ++pair) {
        if (expert_of(pair) != *expert) continue;
        if (by_pair && pair < group) return 0;
        rows[n++] = static_cast<int32_t>(pair);
    }
    return n;
}

}  // namespace

int64_t expert_linear_tasks(const ExpertLinearArgs& args, const Frame& frame) {
    const Groups g = groups_of(args, frame);
    return g.groups * g.panel_tasks;
}

// Row (i, j) of y is row i (or (i, j)) of x times the matrix of row i's j-th expert, plus the
// expert's bias. The pairs (i, j) of one expert are multiplied together, so that its weights are
// read once. Reference: tests/reference/expert_linear.py.
void expert_linear(const ExpertLinearArgs& args, const Frame& frame, const Worker& worker,
                   int64_t begin, int64_t end) {
    const PackedWeight& w = args.weight;
    const Groups g = groups_of(args, frame);
    const auto* routes = frame.at<const int32_t>(args.routes);
    auto* rows = reinterpret_cast<int32_t*>(worker.scratch);
    unsigned char* scratch = worker.scratch + (4 * g.pairs + 63) / 64 * 64;

    int64_t gathered = -1, n = 0;
    int32_t expert = 0;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / g.panel_tasks;
        if (group != gathered) n = gather(g, routes, group, rows, &expert);
        gathered = group;
        if (worker.claim && !worker.claim->holds()) return;  // routes may be those of a later run
        if (n == 0) continue;
        Product product{};
        product.weight = &w;
        product.matrix = w.data + expert * w.matrix_bytes;
        product.x = frame.at<const unsigned char>(args.x);
        product.y = frame.at<float>(args.y);
        product.y_columns = w.rows;
        product.bias = args.has_bias ? frame.at<const float>(args.bias) + expert * w.rows : nullptr;
        product.rows = rows;
        product.x_share = args.x_by_rank ? 1 : args.used;
        product.x_rows = g.pairs / product.x_share;
        product.n = n;
        const int64_t panel = task % g.panel_tasks * g.panels;
        const int64_t last = panel + g.panels < w.panels() ? panel + g.panels : w.panels();
        if (worker.claim)
            multiply_claimed(product, g.pairs, panel, last, g.panels, *worker.claim, scratch);
        else
            multiply(product, panel, last, scratch);
    }
}

// y = sum over ranks, in order, of weight * x.  Reference: tests/reference/combine.py.

// A task is a token.
int64_t combine_tasks(const CombineArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void combine(const CombineArgs& args, const Frame& frame, const Worker&, int64_t begin,
             int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
        const float* x = frame.at<const float>(args.x) + t * args.used * args.width;
        const int32_t* routes = frame.at<const int32_t>(args.routes) + t * args.used * 2;
        float* y = frame.at<float>(args.y) + t * args.width;
        for (int64_t i = 0; i < args.width; i += F32::kLanes) {
            const int64_t n = args.width - i < F32::kLanes ? args.width - i : F32::kLanes;
            F32 total = F32::zero();
            for (int64_t u = 0; u < args.used; ++u) {
                float weight;
                memcpy(&weight, &routes[2 * u + 1], sizeof weight);
                total = fma(F32::set(weight), F32::load(x + u * args.width + i, n), total);
            }
            total.store(y + i, n);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
