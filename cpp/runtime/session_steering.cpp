// Session: adapters, control vectors and edits of values.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "runtime/session.h"
#include "runtime/steering/adapter.h"

namespace plait {

// Adapters may also change layers that the context does not run, among them those for multi-token
// prediction.
bool Session::uses_weight(WeightId weight) {
    const ModelInfo& info = model_->info();
    const std::string& name = model_->weights().name(weight);
    bool is_drafting = false;
    for (int i = info.n_layers; i < info.n_all_layers(); ++i)
        is_drafting = is_drafting || name.starts_with(text("blk.", i, "."));
    return (settings_.layer_range.is_whole(info.n_layers) && !is_drafting) ||
           std::ranges::any_of(runners(),
                               [&](const StepRunner* runner) { return runner->uses(weight); });
}

void Session::set_lora(std::vector<ScaledAdapter> adapters, std::span<const SequenceId> sequences) {
    for (const SequenceId sequence : sequences) check_sequence(sequence);
    std::vector<WeightId> adaptable;
    for (StepRunner* runner : runners())
        std::ranges::copy(runner->adaptable(), std::back_inserter(adaptable));
    for (const ScaledAdapter& one : adapters) {
        const Adapter& adapter = *one.adapter;
        if (&adapter.model() != model_.get())
            throw InvalidArgument(text("set_lora: ", adapter.path(),
                                       " was loaded for another Model; load it with load_lora() "
                                       "of this context's model"));
        if (!std::isfinite(one.scale))
            throw InvalidArgument(text("set_lora: the scale of ", adapter.path(), " is ", one.scale,
                                       ", expected a finite number"));
        for (const Adapter::Delta& delta : adapter.deltas())
            if (std::ranges::find(adaptable, delta.base) == adaptable.end() &&
                uses_weight(delta.base))
                throw UnsupportedError(text(adapter.path(), ": ",
                                            model_->weights().name(delta.base),
                                            " is not used in a matrix product of this model"));
    }
    const auto number = [](const ScaledAdapter& one) { return one.adapter->number(); };
    std::ranges::sort(adapters, {}, number);
    const auto twice = std::ranges::adjacent_find(adapters, {}, number);
    if (twice != adapters.end())
        throw InvalidArgument(text("set_lora: ", twice->adapter->path(), " is given twice"));
    BySequence<std::vector<ScaledAdapter>> next = adapters_;
    next.set(sequences, adapters);
    engine_.use_adapters(next);
    adapters_ = std::move(next);
}

void Session::set_control_vector(std::span<const float> rows, int64_t n, int64_t first_layer,
                                 std::optional<int64_t> last_layer,
                                 std::span<const SequenceId> sequences) {
    for (const SequenceId sequence : sequences) check_sequence(sequence);
    if (rows.empty()) return set_control(nullptr, sequences);
    const ModelInfo& info = model_->info();
    const auto width = static_cast<size_t>(info.width);
    if (n > info.n_layers || rows.size() != static_cast<size_t>(n) * width)
        throw InvalidArgument(text("control vector: expected at most ", info.n_layers, " rows of ",
                                   width, " numbers, got ", n, " rows with ", rows.size(),
                                   " numbers in total"));
    const int64_t last = last_layer.value_or(info.n_layers - 1);
    if (first_layer < 0 || last < first_layer || last >= info.n_layers)
        throw InvalidArgument(text("control vector: layers ", first_layer, " to ", last,
                                   ": expected 0 <= first_layer <= last_layer < ", info.n_layers));
    if (!std::ranges::all_of(rows, [](float x) { return std::isfinite(x); }))
        throw InvalidArgument("control vector: expected finite numbers");
    auto vector = std::make_shared<ActiveControl>();
    std::vector<float>& all = vector->rows;
    all.resize(static_cast<size_t>(info.n_layers) * width);
    const auto begin = std::min(rows.size(), static_cast<size_t>(first_layer) * width);
    const auto end = std::min(rows.size(), (static_cast<size_t>(last) + 1) * width);
    std::copy(rows.begin() + static_cast<std::ptrdiff_t>(begin),
              rows.begin() + static_cast<std::ptrdiff_t>(end),
              all.begin() + static_cast<std::ptrdiff_t>(begin));
    std::ostringstream digest;
    digest << "control vector of digest " << std::hex << checksum(std::as_bytes(std::span(all)));
    vector->identity = std::move(digest).str();
    set_control(std::move(vector), sequences);
}

void Session::set_control(std::shared_ptr<const ActiveControl> vector,
                          std::span<const SequenceId> sequences) {
    const auto before = control_;
    try {
        control_.set(sequences, vector);
        use_control();
    } catch (...) {
        control_ = before;
        use_control();
        throw;
    }
}

// Moves map nodes, so that neither this nor restore_own_changes() can fail.
void Session::drop_own_changes(SequenceId sequence) noexcept {
    auto adapters = adapters_.own.extract(sequence);
    auto control = control_.own.extract(sequence);
    own_changes_are_new_ = own_changes_are_new_ || !adapters.empty() || !control.empty();
    if (saved_changes_.empty()) return;
    SavedChanges& saved = saved_changes_.back();
    if (saved.sequences[static_cast<size_t>(sequence)]) return;
    saved.sequences[static_cast<size_t>(sequence)] = true;
    saved.adapters.insert(std::move(adapters));
    saved.control.insert(std::move(control));
}

void Session::restore_own_changes() noexcept {
    SavedChanges saved = std::move(saved_changes_.back());
    saved_changes_.pop_back();
    for (SequenceId id = 0; id < settings_.n_seq_max(); ++id) {
        if (!saved.sequences[static_cast<size_t>(id)]) continue;
        adapters_.own.erase(id);
        control_.own.erase(id);
        own_changes_are_new_ = true;
    }
    adapters_.own.merge(saved.adapters);
    control_.own.merge(saved.control);
}

void Session::use_own_changes() {
    if (!own_changes_are_new_) return;
    engine_.use_adapters(adapters_);
    use_control();
    own_changes_are_new_ = false;
}

// One vector for all sequences is an input of the plan; vectors of single sequences are edits.
void Session::use_control() {
    use_edits();
    const bool is_general = control_.own.empty() && control_.general;
    engine_.use_control(is_general ? std::span(control_.general->rows) : std::span<const float>());
}

// A row of l_out may have several streams of `width` elements; the vector is added to each.
std::vector<NamedEdit> Session::control_edits() {
    std::vector<NamedEdit> edits;
    if (control_.own.empty()) return edits;
    std::map<std::shared_ptr<const ActiveControl>, std::vector<SequenceId>> users;
    for (SequenceId sequence = 0; sequence < settings_.n_seq_max(); ++sequence)
        if (const auto& vector = control_.of(sequence)) users[vector].push_back(sequence);
    const auto width = static_cast<size_t>(model_->info().width);
    for (const Engine::ValueInfo& value : value_infos()) {
        if (value.name.role != Role::l_out || value.name.layer >= model_->info().n_layers) continue;
        const Shape& shape = value.type.shape;
        for (const auto& [vector, sequences] : users) {
            auto edit = std::make_shared<ValueEdit>();
            edit->selection = RowSelection(sequences, RowSelection::Range{});
            edit->width = static_cast<size_t>(shape.elements() / shape[0]);
            edit->is_control = true;
            const auto row = std::span(vector->rows)
                                 .subspan(static_cast<size_t>(value.name.layer) * width, width);
            while (edit->rows.size() < edit->width)
                edit->rows.insert(edit->rows.end(), row.begin(), row.end());
            edits.push_back({value.name, std::move(edit)});
        }
    }
    return edits;
}

std::vector<ActiveChange> Session::active_changes(std::span<const SequenceId> sequences) const {
    const auto listed = [](const std::vector<ScaledAdapter>& adapters, const auto& control) {
        std::vector<ActiveChange> changes;
        for (const ScaledAdapter& one : adapters)
            changes.push_back({one.adapter->identity(), one.scale});
        std::ranges::sort(changes, {}, &ActiveChange::identity);
        if (control) changes.push_back({control->identity, 1.0f});
        return changes;
    };
    if (sequences.empty() || (adapters_.own.empty() && control_.own.empty()))
        return listed(adapters_.general, control_.general);
    std::vector<std::vector<ActiveChange>> by_sequence;
    for (const SequenceId each : sequences)
        by_sequence.push_back(listed(adapters_.of(each), control_.of(each)));
    if (std::ranges::adjacent_find(by_sequence, std::not_equal_to()) == by_sequence.end())
        return by_sequence[0];
    std::vector<ActiveChange> changes;
    for (size_t i = 0; i < sequences.size(); ++i)
        for (const ActiveChange& change : by_sequence[i])
            changes.push_back(
                {change.identity + text(" of sequence ", sequences[i]), change.scale});
    return changes;
}

uint64_t Session::start_edit(const std::string& name, std::shared_ptr<const ValueEdit> edit) {
    const Engine::ValueInfo value = find_value("edit", name);
    if (value.pattern)
        throw InvalidArgument(text("edit: ", name, " can be captured, but not edited; edit ",
                                   "attn_heads or q_rope instead"));
    const int64_t width = value.type.shape.elements() / value.type.shape[0];
    if (edit->selection.sequences())
        for (const SequenceId sequence : *edit->selection.sequences()) check_sequence(sequence);
    if (!edit->function) {
        const size_t n_rows = edit->by_position ? edit->selection.n_positions().value_or(0) : 1;
        if (edit->width != static_cast<size_t>(width) || edit->rows.size() != n_rows * edit->width)
            throw InvalidArgument(text("edit: expected ", n_rows, " rows of ", width,
                                       " numbers, got ", edit->rows.size(), " numbers"));
    }
    std::vector<Attachments::Edit>& edits = attachments_.edits;
    int64_t n_experts = 0;
    if (value.name.role == Role::router) {
        const ValueName logits{Role::router_logits, value.name.layer, value.name.nth};
        for (const Engine::ValueInfo& known : value_infos())
            if (known.name == logits) n_experts = known.type.shape[-1];
    }
    edits.push_back({++attachments_.n_edits, value.name, std::move(edit), n_experts});
    try {
        use_edits();
    } catch (...) {
        edits.pop_back();
        throw;
    }
    return attachments_.n_edits;
}

void Session::use_edits() {
    std::vector<NamedEdit> edits = control_edits();
    for (const Attachments::Edit& started : attachments_.edits)
        edits.push_back({started.name, started.edit, started.n_experts});
    engine_.use_edits(std::move(edits));
}

Shape Session::value_shape(const std::string& name) {
    const Shape whole = find_value("value_shape", name).type.shape;
    Shape row;
    for (int axis = 1; axis < whole.rank; ++axis) row.dims[row.rank++] = whole[axis];
    return row;
}

}  // namespace plait
