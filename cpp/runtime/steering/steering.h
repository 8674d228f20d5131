// What one context adds to its model: adapters, a control vector, edits of named values. Sets of
// each have numbers, which are part of plan keys; scales and vectors are inputs of the plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/capture.h"
#include "graph/low_rank.h"
#include "graph/plan_key.h"
#include "runtime/steering/adapter.h"

namespace plait {

// What someone makes of a value.
class ValueEdit {
public:
    virtual ~ValueEdit() = default;
    // `rows` are a piece's, [n, ...] of the shape, in the order of the batch; to be overwritten.
    virtual void apply(std::span<float> rows, const Shape& shape) = 0;
};

struct ScaledAdapter {
    std::shared_ptr<const Adapter> adapter;
    float scale = 1.0f;
};

// Something active that shapes what is remembered, as a saved state names it.
struct ActivePart {
    std::string what;  // "LoRA 'pirate' of digest ..."
    float scale = 1.0f;
    friend bool operator==(const ActivePart&, const ActivePart&) = default;
};

class Steering {
public:
    // Sets what of the key it decides; copies and shifts of rows have nothing of it.
    void mark(PlanKey& key) const;
    uint16_t adapter_set() const { return adapter_set_; }
    // Puts into a graph of that key what the key says.
    void rewrite(Graph& graph, const PlanKey& key) const;

    // Makes these the active ones; sorted by number, each once. `first_weight(adapter)` is asked
    // for each that no set had before, and says where in the graph's numbers its weights begin.
    template <typename FirstWeight>
    void use_adapters(std::vector<ScaledAdapter> adapters, FirstWeight first_weight) {
        for (const ScaledAdapter& one : adapters)
            if (!is_known(*one.adapter))
                known_.push_back({one.adapter, first_weight(*one.adapter)});
        activate(std::move(adapters));
    }
    // By number of InputId{adapter_scale, number}: what the active set's plans multiply by.
    std::vector<float> scales() const;

    // `identity`: what a saved state says of the vector; empty: there is none.
    void use_control(std::string identity, int n_layers) {
        control_ = std::move(identity);
        control_layers_ = n_layers;
    }

    // In this order. UnsupportedError beyond 65535 different sets.
    void use_edits(std::vector<ValueName> names, std::vector<std::shared_ptr<ValueEdit>> edits);
    ValueEdit& edit(uint16_t index) const { return *edits_.at(index); }

    std::vector<ActivePart> active() const;

private:
    struct Known {
        std::shared_ptr<const Adapter> adapter;
        WeightId first;
    };
    // A number that plans multiply by: an adapter's scale, times what its rank makes of alpha.
    struct Factor {
        size_t adapter;  // of the set
        float factor;
        friend bool operator==(const Factor&, const Factor&) = default;
    };
    struct AdapterSet {
        std::vector<const Adapter*> adapters;
        std::vector<LowRank> deltas;
        std::vector<Factor> factors;
    };
    bool is_known(const Adapter& adapter) const;
    void activate(std::vector<ScaledAdapter> adapters);
    AdapterSet make_set(std::vector<const Adapter*> adapters) const;

    std::vector<Known> known_;  // kept, as plans hold their weights
    std::vector<AdapterSet> adapter_sets_{{}};
    std::vector<std::vector<ValueName>> edit_sets_{{}};
    uint16_t adapter_set_ = 0, edit_set_ = 0;
    std::vector<ScaledAdapter> adapters_;
    std::string control_;  // identity; empty: none
    int control_layers_ = 0;
    std::vector<std::shared_ptr<ValueEdit>> edits_;
};

}  // namespace plait
