#include "batch/batch.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

constexpr int kMaxAxes = 4;  // t, y, x, extra

// Reserves memory for `extra` more elements, so that the insertions that follow cannot fail.
template <typename T>
void reserve_extra(std::vector<T>& values, size_t extra) {
    if (values.capacity() - values.size() >= extra) return;
    values.reserve(std::max(values.size() + extra, 2 * values.capacity()));
}

}  // namespace

void Batch::add(TokenId token, std::span<const Position> position,
                std::span<const SequenceId> sequences, bool want) {
    if (width_ > 0) throw BatchError("add: the batch holds embeddings; it cannot hold tokens too");
    reserve_extra(tokens_, 1);
    add_entry(position, sequences, want);
    tokens_.push_back(token);
}

void Batch::add_embedding(std::span<const float> row, std::span<const Position> position,
                          std::span<const SequenceId> sequences, bool want, bool both_directions) {
    if (!tokens_.empty())
        throw BatchError("add_embeddings: the batch holds tokens; it cannot hold embeddings too");
    const auto width = static_cast<int64_t>(row.size());
    if (width == 0) throw BatchError("add_embeddings: an embedding has no elements");
    if (width_ > 0 && width != width_)
        throw BatchError(text("add_embeddings: an embedding has ", width,
                              " elements, those already in the batch have ", width_));
    if (width_ > 0 && both_directions != both_directions_)
        throw BatchError(text("add_embeddings: both_directions is ",
                              both_directions ? "True" : "False",
                              ", for the embeddings already in the batch it is not"));
    reserve_extra(embeddings_, row.size());
    add_entry(position, sequences, want);
    width_ = width;
    both_directions_ = both_directions;
    embeddings_.insert(embeddings_.end(), row.begin(), row.end());
}

void Batch::add_entry(std::span<const Position> position, std::span<const SequenceId> sequences,
                      bool want) {
    const size_t given = position.size();
    if (given > 1 && given != kMaxAxes)
        throw BatchError(text("add: an entry has 1 or ", kMaxAxes, " positions, got ", given));
    if (sequences.empty()) throw BatchError("add: an entry needs at least one sequence id");

    const bool widen = given == kMaxAxes && axes_ == 1;
    const auto axes = widen ? size_t{kMaxAxes} : static_cast<size_t>(axes_);
    reserve_extra(positions_, widen ? axes * (size() + 1) : axes);
    reserve_extra(sequence_begin_, 1);
    reserve_extra(sequences_, sequences.size());
    reserve_extra(wants_, 1);

    // A single position p is equivalent to (p, p, p, 0).
    const auto put_text = [this](size_t at, Position p) {
        std::fill_n(positions_.begin() + static_cast<std::ptrdiff_t>(at), 3, p);
        positions_[at + 3] = 0;
    };
    if (widen) {
        positions_.resize(axes * size());
        for (size_t i = size(); i-- > 0;) put_text(axes * i, positions_[i]);
        axes_ = kMaxAxes;
    }
    if (given == axes) {
        positions_.insert(positions_.end(), position.begin(), position.end());
    } else {
        const Position p = given == 0 ? kNextPosition : position[0];
        positions_.resize(positions_.size() + axes, p);
        if (axes == kMaxAxes) put_text(positions_.size() - axes, p);
    }
    sequences_.insert(sequences_.end(), sequences.begin(), sequences.end());
    sequence_begin_.push_back(static_cast<int32_t>(sequences_.size()));
    wants_.push_back(want ? 1 : 0);
}

void Batch::clear() {
    tokens_.clear();
    embeddings_.clear();
    width_ = 0;
    positions_.clear();
    axes_ = 1;
    sequence_begin_.resize(1);
    sequences_.clear();
    wants_.clear();
    both_directions_ = false;
}

void Batch::reserve(size_t entries) {
    tokens_.reserve(entries);
    positions_.reserve(entries * static_cast<size_t>(axes_));
    sequence_begin_.reserve(entries + 1);
    sequences_.reserve(entries);
    wants_.reserve(entries);
}

BatchView Batch::view() const {
    return {
        .tokens = tokens_,
        .embeddings = embeddings_,
        .width = width_,
        .positions = positions_,
        .axes = axes_,
        .sequence_begin = sequence_begin_,
        .sequences = sequences_,
        .wants = wants_,
        .both_directions = both_directions_,
        .size = size(),
    };
}

}  // namespace plait
