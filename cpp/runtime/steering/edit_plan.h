// Edits of named values: which rows they change, and what plans and steps need of them.
//
// Edits of arrays run in the plan. A plan depends on the set of points alone; the rows of all edits
// are one input, and which token is combined with which row is another, for each point. Edits of
// one value that select different tokens share a point, so a point has at most one edit per token.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "batch/batch.h"
#include "graph/op_enums.h"
#include "graph/rewrite.h"
#include "tensor/tensor.h"

namespace plait {

// A set of tokens: those of some sequences at some positions.
class RowSelection {
public:
    // The positions begin, begin + step, ... below `end`.
    struct Range {
        int64_t begin = 0;
        int64_t end = std::numeric_limits<int64_t>::max();
        int64_t step = 1;
    };

    RowSelection() = default;  // every token
    // `sequences`: nullopt selects all.
    RowSelection(std::optional<std::vector<SequenceId>> sequences, Range positions);
    // `positions` are distinct, in any order; else throws InvalidArgument.
    RowSelection(std::optional<std::vector<SequenceId>> sequences,
                 std::span<const Position> positions);

    // Ascending; nullopt if every sequence is selected.
    const std::optional<std::vector<SequenceId>>& sequences() const { return sequences_; }
    // Returns the index of a token's position in the order in which the positions were given;
    // nullopt if the token is not selected. `sequences`: the sequences of the token, ascending.
    std::optional<size_t> find(std::span<const SequenceId> sequences, Position position) const;
    // Returns the number of selected positions; nullopt if there is no last one.
    std::optional<size_t> n_positions() const;
    // False if no token can be in both.
    bool may_overlap(const RowSelection& other) const;

private:
    void sort_sequences();
    std::optional<size_t> index_of(Position position) const;

    std::optional<std::vector<SequenceId>> sequences_;
    Range range_;  // encloses listed_
    // Ascending, with the index of each position; nullopt if every position of the range is
    // selected.
    std::optional<std::vector<std::pair<Position, size_t>>> listed_;
};

// A user-defined change of rows.
class RowFunction {
public:
    virtual ~RowFunction() = default;
    // Changes rows of one microbatch in place. `rows` has the shape `shape`, [n, ...], in batch
    // order; n is not 0.
    virtual void apply(std::span<float> rows, const Shape& shape) = 0;
};

// A change of a value: a function, or one row for all selected tokens or for each selected position.
struct ValueEdit {
    RowSelection selection;
    std::unique_ptr<RowFunction> function;  // if not null, the other members are not used
    RowChange change = RowChange::add;
    std::vector<float> rows;  // [width] or [n_positions, width]
    size_t width = 0;         // elements of one row
    // A token is combined with the row of its position; else all are combined with the only row.
    bool by_position = false;
    bool is_control = false;  // of a control vector
};

struct NamedEdit {
    ValueName name;
    std::shared_ptr<const ValueEdit> edit;
    int64_t n_experts = 0;  // of Role::router
};

// What a plan depends on.
struct EditSet {
    std::vector<EditPoint> points;  // sorted by name; points of one value in the order of edits
    EditRowsInput rows;
    bool operator==(const EditSet&) const = default;
};

class EditPlan {
public:
    EditPlan() = default;
    // The edits apply in this order.
    explicit EditPlan(std::vector<NamedEdit> edits);

    const EditSet& set() const { return set_; }
    size_t n_points_with_picks() const { return placed_.size(); }
    const NamedEdit& on_host(uint16_t index) const { return on_host_.at(index); }

    // Copies the rows of all edits to `rows`, the elements of the input edit_rows.
    void copy_rows(std::span<float> rows) const;
    size_t n_elements() const { return n_elements_; }

    // Sets picks[0] and picks[1] of a token; see ops::EditRows. Throws InvalidArgument if the token
    // belongs to several sequences and several edits of the point select it, or a control vector
    // selects only some of these sequences.
    void pick(uint16_t point, std::span<const SequenceId> sequences, Position position,
              int32_t* picks) const;

private:
    struct Placed {
        std::shared_ptr<const ValueEdit> edit;
        size_t first;  // its first element in the rows of all edits
    };
    void add_points(std::span<const NamedEdit> edits);
    void place(const NamedEdit& named, size_t point);

    EditSet set_;
    std::vector<NamedEdit> on_host_;           // by index of the point
    std::vector<std::vector<Placed>> placed_;  // by index of the point
    size_t n_elements_ = 0;
};

}  // namespace plait
