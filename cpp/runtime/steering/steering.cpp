#include "runtime/steering/steering.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "graph/rewrite.h"
#include "runtime/steering/adapter.h"

namespace plait {
namespace {

// Returns the index of the first set for which same(set) is true. If there is none, appends make()
// and returns its index.
template <typename Set, typename Same, typename Make>
uint16_t find_or_add(std::vector<Set>& sets, Same same, Make make) {
    const auto known = std::ranges::find_if(sets, same);
    const auto index = static_cast<size_t>(known - sets.begin());
    if (index > UINT16_MAX)
        throw UnsupportedError(
            text("a context has at most ", UINT16_MAX, " different sets of adapters or edits"));
    if (known == sets.end()) sets.push_back(make());
    return static_cast<uint16_t>(index);
}

}  // namespace

void Steering::set_fields(PlanKey& key) const {
    key.adapters = adapter_set_;
    key.control = !control_.empty();
    key.edits = edit_set_;
}

void Steering::rewrite(Graph& graph, const PlanKey& key) const {
    if (key.adapters != 0) add_low_rank(graph, adapter_sets_[key.adapters].deltas);
    if (key.control) add_control(graph, control_layers_);
    if (key.edits != 0) insert_edits(graph, edit_sets_[key.edits], key.n_outputs > 0);
}

bool Steering::is_known(const Adapter& adapter) const {
    return std::ranges::any_of(known_,
                               [&](const Known& known) { return known.adapter.get() == &adapter; });
}

void Steering::activate(std::vector<ScaledAdapter> adapters) {
    std::vector<const Adapter*> wanted;
    for (const ScaledAdapter& one : adapters) wanted.push_back(one.adapter.get());
    adapter_set_ = find_or_add(
        adapter_sets_, [&](const AdapterSet& set) { return set.adapters == wanted; },
        [&] { return make_set(wanted); });
    adapters_ = std::move(adapters);
}

Steering::AdapterSet Steering::make_set(std::vector<const Adapter*> adapters) const {
    AdapterSet set;
    for (size_t i = 0; i < adapters.size(); ++i) {
        const auto known = std::ranges::find_if(
            known_, [&](const Known& k) { return k.adapter.get() == adapters[i]; });
        for (const Adapter::Delta& delta : adapters[i]->deltas()) {
            const auto scale = find_or_add(
                set.factors,
                [&](const Factor& f) {
                    return f == Factor{i, delta.factor};
                },
                [&] {
                    return Factor{i, delta.factor};
                });
            LowRank low{delta.base, delta.a, delta.b, scale};
            low.a.id += known->first;
            low.b.id += known->first;
            set.deltas.push_back(low);
        }
    }
    set.adapters = std::move(adapters);
    return set;
}

std::vector<float> Steering::scales() const {
    std::vector<float> scales;
    for (const Factor& f : adapter_sets_[adapter_set_].factors)
        scales.push_back(adapters_[f.adapter].scale * f.factor);
    return scales;
}

void Steering::use_edits(std::vector<ValueName> names,
                         std::vector<std::shared_ptr<ValueEdit>> edits) {
    PLAIT_CHECK(names.size() == edits.size());
    edit_set_ = find_or_add(
        edit_sets_, [&](const std::vector<ValueName>& set) { return set == names; },
        [&] { return names; });
    edits_ = std::move(edits);
}

std::vector<ActiveChange> Steering::active() const {
    std::vector<ActiveChange> changes;
    for (const ScaledAdapter& one : adapters_)
        changes.push_back({one.adapter->identity(), one.scale});
    std::ranges::sort(changes, {}, &ActiveChange::identity);
    if (!control_.empty()) changes.push_back({control_, 1.0f});
    return changes;
}

}  // namespace plait
