#include "runtime/steering/edit_plan.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

// The smallest input for rows holds this many elements, 4 MiB; each further group twice as many. So
// few sets of edits need another plan for the size of their rows.
constexpr size_t kMinElements = size_t{1} << 20;
constexpr size_t kMaxElements = size_t{1} << 30;

// The order of the input's elements: every edit starts at a multiple.
constexpr size_t kAlignment = 16;

// True if two ascending lists have an element in common.
bool intersect(std::span<const SequenceId> a, std::span<const SequenceId> b) {
    for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
        if (*i == *j) return true;
        ++(*i < *j ? i : j);
    }
    return false;
}

// Throws InvalidArgument if only some of the sequences of a token use the control vector.
void check_control(const ValueEdit& vector, std::span<const SequenceId> sequences,
                   Position position) {
    const auto uses = [&](SequenceId sequence) {
        return std::ranges::binary_search(*vector.selection.sequences(), sequence);
    };
    const auto other = std::ranges::find_if_not(sequences, uses);
    if (other != sequences.end())
        throw InvalidArgument(text("set_control_vector: the token at position ", position,
                                   " belongs to the sequences ",
                                   *std::ranges::find_if(sequences, uses), " and ", *other,
                                   ", which use different vectors; add a separate token for each"));
}

}  // namespace

RowSelection::RowSelection(std::optional<std::vector<SequenceId>> sequences, Range positions)
    : sequences_(std::move(sequences)), range_(positions) {
    PLAIT_CHECK(range_.step > 0);
    sort_sequences();
}

RowSelection::RowSelection(std::optional<std::vector<SequenceId>> sequences,
                           std::span<const Position> positions)
    : sequences_(std::move(sequences)) {
    sort_sequences();
    listed_.emplace();
    for (size_t i = 0; i < positions.size(); ++i) listed_->emplace_back(positions[i], i);
    std::ranges::sort(*listed_);
    using Listed = std::pair<Position, size_t>;
    const auto twice = std::ranges::adjacent_find(*listed_, {}, &Listed::first);
    if (twice != listed_->end())
        throw InvalidArgument(text("edit: positions: ", twice->first, " is given twice"));
    if (listed_->empty())
        range_ = {0, 0, 1};
    else
        range_ = {listed_->front().first, int64_t{listed_->back().first} + 1, 1};
}

void RowSelection::sort_sequences() {
    if (!sequences_) return;
    std::ranges::sort(*sequences_);
    const auto repeated = std::ranges::unique(*sequences_);
    sequences_->erase(repeated.begin(), repeated.end());
}

std::optional<size_t> RowSelection::index_of(Position position) const {
    if (position < range_.begin || position >= range_.end) return std::nullopt;
    if (!listed_) {
        const int64_t offset = position - range_.begin;
        if (offset % range_.step != 0) return std::nullopt;
        return static_cast<size_t>(offset / range_.step);
    }
    using Listed = std::pair<Position, size_t>;
    const auto found = std::ranges::lower_bound(*listed_, position, {}, &Listed::first);
    if (found == listed_->end() || found->first != position) return std::nullopt;
    return found->second;
}

std::optional<size_t> RowSelection::find(std::span<const SequenceId> sequences,
                                         Position position) const {
    if (sequences_ && !intersect(*sequences_, sequences)) return std::nullopt;
    return index_of(position);
}

std::optional<size_t> RowSelection::n_positions() const {
    if (listed_) return listed_->size();
    if (range_.end == Range{}.end) return std::nullopt;
    const int64_t length = std::max<int64_t>(0, range_.end - range_.begin);
    return static_cast<size_t>((length + range_.step - 1) / range_.step);
}

bool RowSelection::may_overlap(const RowSelection& other) const {
    if (sequences_ && other.sequences_ && !intersect(*sequences_, *other.sequences_)) return false;
    if (range_.begin >= other.range_.end || other.range_.begin >= range_.end) return false;
    if (!listed_ && other.listed_) return other.may_overlap(*this);
    if (!listed_) return true;
    return std::ranges::any_of(
        *listed_, [&](const auto& listed) { return other.index_of(listed.first).has_value(); });
}

EditPlan::EditPlan(std::vector<NamedEdit> edits) {
    std::ranges::stable_sort(edits, {}, &NamedEdit::name);
    for (size_t begin = 0, end = 0; begin < edits.size(); begin = end) {
        while (end < edits.size() && edits[end].name == edits[begin].name) ++end;
        add_points(std::span(edits).subspan(begin, end - begin));
    }
    if (placed_.empty()) return;
    const size_t elements = std::bit_ceil(std::max(n_elements_, kMinElements));
    if (elements > kMaxElements)
        throw UnsupportedError(text("edit: the arrays of all open edits have ", n_elements_,
                                    " elements, expected at most ", kMaxElements));
    set_.rows = {static_cast<uint16_t>(std::bit_width(elements / kMinElements)),
                 static_cast<int64_t>(elements)};
}

// Assigns the edits of one value to points. An edit goes to the first point after those of earlier
// edits that may select the same token.
void EditPlan::add_points(std::span<const NamedEdit> edits) {
    std::vector<size_t> level(edits.size());
    size_t first = 0;  // the first edit after the last function
    size_t first_point = set_.points.size();
    for (size_t i = 0; i < edits.size(); ++i) {
        const ValueEdit& edit = *edits[i].edit;
        // The rows of a router are no floats; they are edited on the host.
        if (edit.function || edits[i].name.role == Role::router) {
            set_.points.push_back({edits[i].name, true, static_cast<uint16_t>(on_host_.size())});
            on_host_.push_back(edits[i]);
            first = i + 1;
            first_point = set_.points.size();
            continue;
        }
        for (size_t j = first; j < i; ++j)
            if (level[j] >= level[i] && edit.selection.may_overlap(edits[j].edit->selection))
                level[i] = level[j] + 1;
        if (first_point + level[i] == set_.points.size()) {
            set_.points.push_back({edits[i].name, false, static_cast<uint16_t>(placed_.size())});
            placed_.emplace_back();
        }
        place(edits[i], set_.points[first_point + level[i]].index);
    }
    if (set_.points.size() > UINT16_MAX)
        throw UnsupportedError(text("a context has at most ", UINT16_MAX, " edits at once"));
}

void EditPlan::place(const NamedEdit& named, size_t point) {
    placed_[point].push_back({named.edit, n_elements_});
    n_elements_ += (named.edit->rows.size() + kAlignment - 1) / kAlignment * kAlignment;
}

void EditPlan::copy_rows(std::span<float> rows) const {
    for (const std::vector<Placed>& point : placed_)
        for (const Placed& placed : point)
            std::ranges::copy(placed.edit->rows, rows.subspan(placed.first).begin());
}

void EditPlan::pick(uint16_t point, std::span<const SequenceId> sequences, Position position,
                    int32_t* picks) const {
    picks[0] = -1;
    picks[1] = 0;
    for (const Placed& placed : placed_[point]) {
        const auto index = placed.edit->selection.find(sequences, position);
        if (!index) continue;
        if (placed.edit->is_control) check_control(*placed.edit, sequences, position);
        if (picks[0] >= 0)
            throw InvalidArgument(
                text("edit: the token at position ", position, " belongs to ", sequences.size(),
                     " sequences, and different edits of one value select it; add a separate token "
                     "for each of these sequences"));
        const size_t row = placed.edit->by_position ? *index : 0;
        picks[0] = static_cast<int32_t>(placed.first + row * placed.edit->width);
        picks[1] = static_cast<int32_t>(placed.edit->change);
    }
}

}  // namespace plait
