// Derivatives of mixtures of experts. The choice of experts is a constant; their weights are not.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "gradient/derivatives/derivatives.h"

namespace plait::gradient {
namespace {

// The lower bound of the divisor of the chosen weights; see the kernel of route.
constexpr double kMinSum = 0x1p-14;

// The chosen experts of all tokens, and their weights: the value of a Route.
struct Routes {
    std::span<const float> value;  // [n, u, 2]: the bits of an integer, a weight
    int32_t expert(size_t i) const { return std::bit_cast<int32_t>(value[2 * i]); }
    float weight(size_t i) const { return value[2 * i + 1]; }
};

// One token of a Route: the derivatives of its chosen weights become those of its logits.
class RouteToken {
public:
    RouteToken(const RouteParams& params, const float* logits, size_t n_experts)
        : params_(params), gates_(logits, logits + n_experts) {}

    // `experts` and `slopes`: of the chosen, before the scales. Adds to dx.
    void backward(const std::vector<int32_t>& experts, std::vector<double> slopes, float* dx) {
        open_gates(experts);
        if (params_.renormalize) divide_back(experts, slopes);
        double along = 0.0;  // the part that a softmax takes from all of its elements
        for (size_t k = 0; k < experts.size(); ++k) along += slopes[k] * gate(experts[k]);
        const auto add = [&](size_t e, double slope) { dx[e] += static_cast<float>(slope); };
        for (size_t k = 0; k < experts.size(); ++k) {
            const double g = gate(experts[k]);
            const double own =
                params_.gating == Gating::sigmoid ? slopes[k] * g * (1.0 - g) : slopes[k] * g;
            add(static_cast<size_t>(experts[k]), own);
        }
        if (params_.gating == Gating::softmax)
            for (size_t e = 0; e < gates_.size(); ++e) add(e, -gates_[e] * along);
        if (params_.gating == Gating::softmax_chosen)
            for (const int32_t e : experts) add(static_cast<size_t>(e), -gate(e) * along);
    }

private:
    double gate(int32_t expert) const { return gates_[static_cast<size_t>(expert)]; }

    // Replaces logits by weights before division: of all experts, or of the chosen ones.
    void open_gates(const std::vector<int32_t>& experts) {
        if (params_.gating == Gating::sigmoid) {
            for (double& x : gates_) x = 1.0 / (1.0 + std::exp(-x));
            return;
        }
        double max = -INFINITY, sum = 0.0;
        for (const double x : gates_) max = std::max(max, x);
        for (double& x : gates_) x = std::exp(x - max);
        if (params_.gating == Gating::softmax)
            for (const double x : gates_) sum += x;
        else
            for (const int32_t e : experts) sum += gate(e);
        for (double& x : gates_) x /= sum;
    }

    void divide_back(const std::vector<int32_t>& experts, std::vector<double>& slopes) const {
        double sum = 0.0, product = 0.0;
        for (size_t k = 0; k < experts.size(); ++k) {
            sum += gate(experts[k]);
            product += slopes[k] * gate(experts[k]);
        }
        for (double& slope : slopes)
            slope = sum > kMinSum ? (slope - product / sum) / sum : slope / kMinSum;
    }

    const RouteParams& params_;
    std::vector<double> gates_;
};

}  // namespace

// Combine, whose gradient flows here, has the value of the node kept.
void Derivative<ops::Route>::backward(const ops::Route& op, NodeId node, Gradient dy, Walk& walk) {
    const Routes routes{walk.value(node)};
    const std::span<const float> logits = walk.value(op.logits);
    const std::span<const float> expert_scale =
        op.expert_scale ? walk.value(*op.expert_scale) : std::span<const float>{};
    const std::span<float> dx = walk.gradient(op.logits);
    const auto used = static_cast<size_t>(op.params.n_used);
    const auto n_experts = static_cast<size_t>(walk.row_width(op.logits));
    for (size_t t = 0; t < static_cast<size_t>(walk.rows(node)); ++t) {
        std::vector<int32_t> experts;
        std::vector<double> slopes;
        for (size_t i = t * used; i < (t + 1) * used; ++i) {
            const int32_t e = routes.expert(i);
            const double own = expert_scale.empty() ? 1.0 : expert_scale[static_cast<size_t>(e)];
            experts.push_back(e);
            slopes.push_back(double{dy[2 * i + 1]} * op.params.scale * own);
        }
        RouteToken(op.params, logits.data() + t * n_experts, n_experts)
            .backward(experts, std::move(slopes), dx.data() + t * n_experts);
    }
}

void Derivative<ops::Combine>::backward(const ops::Combine& op, NodeId node, Gradient dy,
                                        Walk& walk) {
    const auto used = static_cast<size_t>(walk.node(op.routes).type.shape[1]);
    const auto m = static_cast<size_t>(walk.row_width(node));
    const Routes routes{walk.value(op.routes)};
    const std::span<const float> y = walk.value(op.y);
    const std::span<float> d_y = walk.gradient(op.y), d_routes = walk.gradient(op.routes);
    for (size_t i = 0; i < static_cast<size_t>(walk.rows(node)) * used; ++i) {
        const float* g = dy.data() + i / used * m;
        double sum = 0.0;
        for (size_t k = 0; k < m; ++k) {
            if (!d_y.empty()) d_y[i * m + k] += routes.weight(i) * g[k];
            sum += double{y[i * m + k]} * g[k];
        }
        if (!d_routes.empty()) d_routes[2 * i + 1] += static_cast<float>(sum);
    }
}

}  // namespace plait::gradient
