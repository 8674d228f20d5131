#include "runtime/step/microbatch_editor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// Routes are pairs of an expert and the bits of its weight; edits see pairs of floats.
void routes_to_floats(std::span<float> routes) {
    for (size_t i = 0; i < routes.size(); i += 2)
        routes[i] = static_cast<float>(std::bit_cast<int32_t>(routes[i]));
}

// Throws InvalidArgument unless the experts of each row exist and differ. `used`: per row.
void floats_to_routes(std::span<float> routes, size_t used, int64_t n_experts) {
    for (size_t row = 0; row < routes.size(); row += 2 * used) {
        std::vector<float> experts;
        for (size_t i = 0; i < used; ++i) {
            float& expert = routes[row + 2 * i];
            if (!(expert >= 0.0f && expert < static_cast<float>(n_experts)) ||
                expert != std::floor(expert) || std::ranges::find(experts, expert) != experts.end())
                throw InvalidArgument(text("edit: router: expected ", used,
                                           " different experts from 0 to ", n_experts - 1,
                                           " for each token, got ", expert));
            experts.push_back(expert);
            expert = std::bit_cast<float>(static_cast<int32_t>(expert));
        }
    }
}

void apply_row(std::span<float> x, std::span<const float> row, RowChange change) {
    for (size_t i = 0; i < x.size(); ++i) {
        switch (change) {
        case RowChange::add: x[i] += row[i]; break;
        case RowChange::replace: x[i] = row[i]; break;
        case RowChange::scale: x[i] *= row[i]; break;
        }
    }
}

}  // namespace

// In batch order.
std::vector<MicrobatchEditor::Selected> MicrobatchEditor::select(const RowSelection& selection,
                                                                 size_t n, Extent extent) const {
    std::vector<Selected> selected;
    for (size_t row = 0; row < n; ++row) {
        const uint32_t entry = entry_of(microbatch_, row, extent);
        const auto index = selection.find(batch_.sequences_of(entry), batch_.position(entry));
        if (index) selected.push_back({row, entry, *index});
    }
    std::ranges::sort(selected, {}, &Selected::entry);
    return selected;
}

void MicrobatchEditor::edit(uint16_t index, std::span<float> rows, const Shape& shape,
                            Extent extent) {
    const NamedEdit& named = edits_.on_host(index);
    const ValueEdit& edit = *named.edit;
    const auto n = static_cast<size_t>(shape[0]);
    const size_t width = rows.size() / n;
    const std::vector<Selected> selected = select(edit.selection, n, extent);
    if (selected.empty()) return;
    std::vector<float> given(selected.size() * width);
    for (size_t i = 0; i < selected.size(); ++i)
        std::copy_n(rows.data() + selected[i].row * width, width, given.data() + i * width);
    const bool is_router = named.name.role == Role::router;
    if (is_router) routes_to_floats(given);
    if (edit.function) {
        Shape shape_given = shape;
        shape_given.dims[0] = static_cast<int64_t>(selected.size());
        edit.function->apply(given, shape_given);
    } else {
        for (size_t i = 0; i < selected.size(); ++i) {
            const size_t row = edit.by_position ? selected[i].index : 0;
            apply_row(std::span(given).subspan(i * width, width),
                      std::span(edit.rows).subspan(row * width, width), edit.change);
        }
    }
    if (is_router) floats_to_routes(given, width / 2, named.n_experts);
    for (size_t i = 0; i < selected.size(); ++i)
        std::copy_n(given.data() + i * width, width, rows.data() + selected[i].row * width);
}

}  // namespace plait
