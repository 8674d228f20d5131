#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sampling/random.h"

namespace plait::sampling {
namespace {

// Applies a stage with the arguments that it takes.
struct Apply {
    Candidates& candidates;
    const History& history;
    uint64_t seed;
    uint64_t key;

    void operator()(const Penalties& stage) const { stage.apply(candidates, history); }
    void operator()(const Dry& stage) const { stage.apply(candidates, history); }
    void operator()(const Mirostat& stage) const { stage.apply(candidates, history); }
    void operator()(const Xtc& stage) const {
        stage.apply(candidates, uniform(seed, key, history.step, Draw::xtc));
    }
    template <typename Other>
    void operator()(const Other& stage) const {
        stage.apply(candidates);
    }
};

}  // namespace

Sampler::Sampler(std::vector<Stage> stages, std::vector<int32_t> forced, uint64_t seed)
    : stages_(std::move(stages)), forced_(std::move(forced)), seed_(seed) {}

void Sampler::sample(const Rows& rows, size_t first, std::span<int32_t> tokens) {
    const std::scoped_lock lock(mutex_);
    std::vector<Drawn> drawn(rows.n());
    Candidates candidates;
    for (size_t i = 0; i < rows.n(); ++i) {
        const History& history = find(rows.keys[i]);
        run(candidates, rows, i, history, first, stages_.size());
        drawn[i] = draw(candidates, history, rows.keys[i]);
    }
    for (size_t i = 0; i < rows.n(); ++i) {
        record(rows.keys[i], drawn[i]);
        tokens[i] = drawn[i].token;
    }
}

void Sampler::apply(const Rows& rows, size_t first, size_t last, std::span<float> out) const {
    const std::scoped_lock lock(mutex_);
    std::fill(out.begin(), out.end(), -std::numeric_limits<float>::infinity());
    Candidates candidates;
    for (size_t i = 0; i < rows.n(); ++i) {
        run(candidates, rows, i, find(rows.keys[i]), first, last);
        // Clamping keeps remaining candidates finite as float; only removed tokens are -inf.
        for (const Candidate& c : candidates.items())
            out[i * rows.n_vocab + static_cast<size_t>(c.token)] =
                static_cast<float>(std::clamp(c.logit, double{std::numeric_limits<float>::lowest()},
                                              double{std::numeric_limits<float>::max()}));
    }
}

void Sampler::probabilities(const Rows& rows, size_t first, std::span<double> out) const {
    const std::scoped_lock lock(mutex_);
    std::fill(out.begin(), out.end(), 0.0);
    Candidates candidates;
    for (size_t i = 0; i < rows.n(); ++i) {
        run(candidates, rows, i, find(rows.keys[i]), first, stages_.size());
        const Softmax softmax = candidates.softmax();
        for (const Candidate& c : candidates.items())
            out[i * rows.n_vocab + static_cast<size_t>(c.token)] = std::exp(softmax.log_p(c));
    }
}

void Sampler::run(Candidates& candidates, const Rows& rows, size_t row, const History& history,
                  size_t first, size_t last) const {
    const auto token = forced(history);
    const auto* best = first < last ? std::get_if<TopK>(&stages_[first]) : nullptr;
    if (best != nullptr && !token) {
        candidates.fill_best(rows.row(row), rows.mask(row), static_cast<size_t>(best->k));
        ++first;
    } else {
        candidates.fill(rows.row(row), rows.mask(row));
    }
    if (token) {
        candidates.keep_only(*token);
        return;
    }
    const Apply apply{candidates, history, seed_, rows.keys[row]};
    for (size_t i = first; i < last; ++i) std::visit(apply, stages_[i]);
}

std::optional<int32_t> Sampler::forced(const History& history) const {
    if (history.n_drawn >= forced_.size()) return std::nullopt;
    return forced_[history.n_drawn];
}

Sampler::Drawn Sampler::draw(const Candidates& candidates, const History& history,
                             uint64_t key) const {
    const auto items = candidates.items();
    if (items.size() == 1) return {items.front().token, 1};
    const double highest = candidates.best().logit;
    double total = 0;
    for (const Candidate& c : items) total += std::exp(c.logit - highest);
    const double target = uniform(seed_, key, history.step, Draw::token) * total;
    double sum = 0;
    Drawn drawn{items.front().token, 0};
    for (const Candidate& c : items) {
        const double weight = std::exp(c.logit - highest);
        if (weight == 0) continue;
        sum += weight;
        drawn = {c.token, weight / total};
        if (target < sum)
            break;  // rounding can make `target` the whole sum; the last candidate is drawn then
    }
    return drawn;
}

void Sampler::record(uint64_t key, Drawn drawn) {
    History& history = histories_[key];
    history.tokens.push_back(drawn.token);
    ++history.step;
    ++history.n_drawn;
    for (const Stage& stage : stages_)
        if (const auto* mirostat = std::get_if<Mirostat>(&stage))
            mirostat->accept(history, drawn.probability);
}

void Sampler::start(uint64_t key, std::span<const int32_t> tokens) {
    const std::scoped_lock lock(mutex_);
    History& history = histories_[key];
    history = {.tokens = {tokens.begin(), tokens.end()}, .step = history.step};
}

void Sampler::accept(uint64_t key, std::span<const int32_t> tokens) {
    const std::scoped_lock lock(mutex_);
    History& history = histories_[key];
    history.tokens.insert(history.tokens.end(), tokens.begin(), tokens.end());
}

void Sampler::reset(uint64_t key) {
    const std::scoped_lock lock(mutex_);
    histories_.erase(key);
}

void Sampler::reset() {
    const std::scoped_lock lock(mutex_);
    histories_.clear();
}

History Sampler::history(uint64_t key) const {
    const std::scoped_lock lock(mutex_);
    return find(key);
}

const History& Sampler::find(uint64_t key) const {
    static const History none;
    const auto found = histories_.find(key);
    return found == histories_.end() ? none : found->second;
}

}  // namespace plait::sampling
