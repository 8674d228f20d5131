// The changes of one context to its model: adapters, a control vector, edits of named values.
// Indices of the sets of adapters and edits are part of plan keys; scales and vectors are inputs of
// the plans.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/capture.h"
#include "graph/plan_key.h"
#include "graph/rewrite.h"
#include "runtime/steering/edit_plan.h"

namespace plait {

class Adapter;

// A setting that sequences may have of their own.
template <typename T>
struct BySequence {
    T general{};                  // of all other sequences
    std::map<SequenceId, T> own;  // of single sequences

    const T& of(SequenceId sequence) const {
        const auto found = own.find(sequence);
        return found == own.end() ? general : found->second;
    }
    // Sets it for these sequences; for all, which then have none of their own, if there are none.
    void set(std::span<const SequenceId> sequences, const T& value) {
        if (sequences.empty()) {
            general = value;
            own.clear();
        }
        for (const SequenceId sequence : sequences) own[sequence] = value;
    }
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

    // Replaces the active adapters. The adapters of each sequence must be unique and sorted by
    // number. Calls `first_weight(adapter)` for each adapter that is new to this object; it returns
    // the id of the adapter's first weight in graphs.
    template <typename FirstWeight>
    void use_adapters(BySequence<std::vector<ScaledAdapter>> adapters, FirstWeight first_weight) {
        const std::vector<std::shared_ptr<const Adapter>> all = all_of(adapters);
        for (const std::shared_ptr<const Adapter>& one : all)
            if (!is_known(*one)) known_.push_back({one, first_weight(*one)});
        activate(std::move(adapters), all);
    }
    // Returns the values of the inputs InputId{adapter_scale, i} for the active adapters.
    std::vector<float> scales() const;
    // The number of inputs of that kind.
    size_t n_scales() const { return adapter_sets_[adapter_set_].factors.size(); }
    bool adapters_differ() const { return adapter_sets_[adapter_set_].by_token; }
    // Returns the scale with this index for a token of these sequences; nullopt if the token does
    // without the adapter. Throws InvalidArgument if the sequences differ.
    std::optional<float> scale_of(size_t index, std::span<const SequenceId> sequences) const;

    // Adds control vectors to the first n_layers layers; 0 removes them.
    void use_control(int n_layers) { control_layers_ = n_layers; }

    // Replaces the active edits. Throws UnsupportedError for more than 65535 different sets.
    void use_edits(EditPlan edits);
    const EditPlan& edits() const { return edits_; }

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
        bool by_token = false;
    };
    bool is_known(const Adapter& adapter) const;
    // The adapters of all sequences, sorted by number.
    static std::vector<std::shared_ptr<const Adapter>> all_of(
        const BySequence<std::vector<ScaledAdapter>>& adapters);
    void activate(BySequence<std::vector<ScaledAdapter>> adapters,
                  std::span<const std::shared_ptr<const Adapter>> all);
    AdapterSet make_set(std::vector<const Adapter*> adapters, bool by_token) const;

    std::vector<Known> known_;  // never removed, since plans use their weights
    std::vector<AdapterSet> adapter_sets_{{}};
    std::vector<EditSet> edit_sets_{{}};
    uint16_t adapter_set_ = 0, edit_set_ = 0;
    BySequence<std::vector<ScaledAdapter>> adapters_;
    int control_layers_ = 0;
    EditPlan edits_;
};

}  // namespace plait
