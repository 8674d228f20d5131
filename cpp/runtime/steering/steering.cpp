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
    key.control = control_layers_ > 0;
    key.edits = edit_set_;
}

void Steering::rewrite(Graph& graph, const PlanKey& key) const {
    if (key.adapters != 0) add_low_rank(graph, adapter_sets_[key.adapters].deltas);
    if (key.control) add_control(graph, control_layers_);
    if (key.edits == 0) return;
    const EditSet& edits = edit_sets_[key.edits];
    insert_edits(graph, edits.points, edits.rows, key.n_outputs > 0);
}

bool Steering::is_known(const Adapter& adapter) const {
    return std::ranges::any_of(known_,
                               [&](const Known& known) { return known.adapter.get() == &adapter; });
}

std::vector<std::shared_ptr<const Adapter>> Steering::all_of(
    const BySequence<std::vector<ScaledAdapter>>& adapters) {
    std::vector<std::shared_ptr<const Adapter>> all;
    const auto add = [&](const std::vector<ScaledAdapter>& some) {
        for (const ScaledAdapter& one : some)
            if (std::ranges::find(all, one.adapter) == all.end()) all.push_back(one.adapter);
    };
    add(adapters.general);
    for (const auto& [sequence, own] : adapters.own) add(own);
    std::ranges::sort(all, {}, &Adapter::number);
    return all;
}

void Steering::activate(BySequence<std::vector<ScaledAdapter>> adapters,
                        std::span<const std::shared_ptr<const Adapter>> all) {
    const bool by_token = !adapters.own.empty() && !all.empty();
    std::vector<const Adapter*> wanted;
    for (const std::shared_ptr<const Adapter>& one : all) wanted.push_back(one.get());
    adapter_set_ = find_or_add(
        adapter_sets_,
        [&](const AdapterSet& set) { return set.adapters == wanted && set.by_token == by_token; },
        [&] { return make_set(wanted, by_token); });
    adapters_ = std::move(adapters);
}

Steering::AdapterSet Steering::make_set(std::vector<const Adapter*> adapters, bool by_token) const {
    AdapterSet set;
    set.by_token = by_token;
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
            LowRank low{delta.base, delta.a, delta.b, scale, by_token};
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
        scales.push_back(adapters_.general[f.adapter].scale * f.factor);
    return scales;
}

std::optional<float> Steering::scale_of(size_t index, std::span<const SequenceId> sequences) const {
    const AdapterSet& set = adapter_sets_[adapter_set_];
    const Factor& factor = set.factors.at(index);
    const auto of = [&](SequenceId sequence) -> std::optional<float> {
        for (const ScaledAdapter& one : adapters_.of(sequence))
            if (one.adapter.get() == set.adapters[factor.adapter]) return one.scale * factor.factor;
        return std::nullopt;
    };
    const std::optional<float> scale = of(sequences.front());
    for (const SequenceId sequence : sequences.subspan(1))
        if (of(sequence) != scale)
            throw InvalidArgument(
                text("set_lora: a token belongs to the sequences ", sequences.front(), " and ",
                     sequence, ", which use different adapters; add a separate token for each"));
    return scale;
}

void Steering::use_edits(EditPlan edits) {
    edit_set_ = find_or_add(
        edit_sets_, [&](const EditSet& set) { return set == edits.set(); },
        [&] { return edits.set(); });
    edits_ = std::move(edits);
}

}  // namespace plait
