// Session: adapters, control vectors and edits of values.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "runtime/session.h"
#include "runtime/steering/adapter.h"

namespace plait {

void Session::set_lora(std::vector<ScaledAdapter> adapters) {
    std::vector<WeightId> adaptable;
    for (StepRunner* runner : runners())
        std::ranges::copy(runner->adaptable(), std::back_inserter(adaptable));
    for (const ScaledAdapter& one : adapters) {
        const Adapter& adapter = *one.adapter;
        if (&adapter.model() != model_.get())
            throw InvalidArgument(text("set_lora: ", adapter.path(),
                                       " was loaded for another Model; expected one of this "
                                       "context's model.load_lora()"));
        if (!std::isfinite(one.scale))
            throw InvalidArgument(text("set_lora: the scale of ", adapter.path(), " is ", one.scale,
                                       ", expected a finite number"));
        for (const Adapter::Delta& delta : adapter.deltas())
            if (std::ranges::find(adaptable, delta.base) == adaptable.end())
                throw UnsupportedError(text(adapter.path(), ": ",
                                            model_->weights().name(delta.base),
                                            " is not the matrix of a product in this model"));
    }
    const auto number = [](const ScaledAdapter& one) { return one.adapter->number(); };
    std::ranges::sort(adapters, {}, number);
    const auto twice = std::ranges::adjacent_find(adapters, {}, number);
    if (twice != adapters.end())
        throw InvalidArgument(text("set_lora: ", twice->adapter->path(), " is given twice"));
    engine_.use_adapters(std::move(adapters));
}

void Session::set_control_vector(std::span<const float> rows, int64_t n, int64_t first_layer,
                                 std::optional<int64_t> last_layer) {
    if (rows.empty()) return engine_.use_control({});
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
    std::vector<float> all(static_cast<size_t>(info.n_layers) * width);
    const auto begin = std::min(rows.size(), static_cast<size_t>(first_layer) * width);
    const auto end = std::min(rows.size(), (static_cast<size_t>(last) + 1) * width);
    std::copy(rows.begin() + static_cast<std::ptrdiff_t>(begin),
              rows.begin() + static_cast<std::ptrdiff_t>(end),
              all.begin() + static_cast<std::ptrdiff_t>(begin));
    engine_.use_control(all);
}

uint64_t Session::start_edit(const std::string& name, std::shared_ptr<ValueEdit> edit) {
    std::vector<Attachments::Edit>& edits = attachments_.edits;
    edits.push_back({++attachments_.n_edits, find_value("edit", name).name, std::move(edit)});
    try {
        use_edits();
    } catch (...) {
        edits.pop_back();
        throw;
    }
    return attachments_.n_edits;
}

void Session::use_edits() {
    std::vector<ValueName> names;
    std::vector<std::shared_ptr<ValueEdit>> edits;
    for (const Attachments::Edit& started : attachments_.edits) {
        names.push_back(started.name);
        edits.push_back(started.edit);
    }
    engine_.use_edits(std::move(names), std::move(edits));
}

Shape Session::value_shape(const std::string& name) {
    const Shape whole = find_value("edit", name).type.shape;
    Shape row;
    for (int axis = 1; axis < whole.rank; ++axis) row.dims[row.rank++] = whole[axis];
    return row;
}

}  // namespace plait
