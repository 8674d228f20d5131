#include "runtime/step/microbatch_editor.h"

#include <algorithm>
#include <numeric>

namespace plait {

void MicrobatchEditor::edit(uint16_t index, std::span<float> rows, const Shape& shape,
                            Extent extent) {
    ValueEdit& edit = steering_.edit(index);
    const auto n = static_cast<size_t>(shape[0]);
    const auto entry = [&](size_t row) {
        return microbatch_.entries[extent == Extent::tokens
                                       ? row
                                       : static_cast<size_t>(microbatch_.output_tokens[row])];
    };
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    if (std::ranges::is_sorted(order, {}, entry)) return edit.apply(rows, shape);

    std::ranges::sort(order, {}, entry);
    const size_t width = rows.size() / n;
    std::vector<float> sorted(rows.size());
    for (size_t i = 0; i < n; ++i)
        std::copy_n(rows.data() + order[i] * width, width, sorted.data() + i * width);
    edit.apply(sorted, shape);
    for (size_t i = 0; i < n; ++i)
        std::copy_n(sorted.data() + i * width, width, rows.data() + order[i] * width);
}

}  // namespace plait
