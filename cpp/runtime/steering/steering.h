// The changes of one context to its model: adapters, a control vector, edits of named values.
// Indices of the sets of adapters and edits are part of plan keys; scales and vectors are inputs of
// the plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/capture.h"
#include "graph/plan_key.h"
#include "graph/rewrite.h"
#include "runtime/facts.h"

namespace plait {

class Adapter;

// A user-defined change of a value.
class ValueEdit {
public:
    virtual ~ValueEdit() = default;
    // Edits the rows of one microbatch in place. `rows` has the shape `shape`, [n, ...], in batch
    // order.
    virtual void apply(std::span<float> rows, const Shape& shape) = 0;
};

struct ScaledAdapter {
    std::shared_ptr<const Adapter> adapter;
    float scale = 1.0f;
};

class Steering {
public:
    // Sets the fields of the key that depend on the active changes. Not for keys of row copies or
    // shifts.
    void set_fields(PlanKey& key) const;
    uint16_t adapter_set() const { return adapter_set_; }
    // Inserts the changes that the key lists into its graph.
    void rewrite(Graph& graph, const PlanKey& key) const;

    // Replaces the active adapters. `adapters` must be unique and sorted by number. Calls
    // `first_weight(adapter)` for each adapter that is new to this object; it returns the id of the
    // adapter's first weight in graphs.
    template <typename FirstWeight>
    void use_adapters(std::vector<ScaledAdapter> adapters, FirstWeight first_weight) {
        for (const ScaledAdapter& one : adapters)
            if (!is_known(*one.adapter))
                known_.push_back({one.adapter, first_weight(*one.adapter)});
        activate(std::move(adapters));
    }
    // Returns the values of the inputs InputId{adapter_scale, i} for the active adapters.
    std::vector<float> scales() const;

    // `identity`: identifies the vector in saved states; empty removes the vector.
    void use_control(std::string identity, int n_layers) {
        control_ = std::move(identity);
        control_layers_ = n_layers;
    }

    // Replaces the active edits, which apply in this order. Throws UnsupportedError for more than
    // 65535 different sets.
    void use_edits(std::vector<ValueName> names, std::vector<std::shared_ptr<ValueEdit>> edits);
    ValueEdit& edit(uint16_t index) const { return *edits_.at(index); }

    std::vector<ActiveChange> active() const;

private:
    struct Known {
        std::shared_ptr<const Adapter> adapter;
        WeightId first;
    };
    // A scale of a plan: the adapter's scale is multiplied by `factor`.
    struct Factor {
        size_t adapter;  // index in the set
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

    std::vector<Known> known_;  // never removed, since plans use their weights
    std::vector<AdapterSet> adapter_sets_{{}};
    std::vector<std::vector<ValueName>> edit_sets_{{}};
    uint16_t adapter_set_ = 0, edit_set_ = 0;
    std::vector<ScaledAdapter> adapters_;
    std::string control_;  // identity; empty if there is none
    int control_layers_ = 0;
    std::vector<std::shared_ptr<ValueEdit>> edits_;
};

}  // namespace plait
