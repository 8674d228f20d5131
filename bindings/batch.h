// A batch as Python fills it.
#pragma once

#include <optional>

#include "batch/batch.h"
#include "made.h"
#include "numpy.h"

namespace plait::python {

// Owns what was added entry by entry, or refers to arrays of the caller's. Every method needs the
// GIL. While a decode reads the batch it cannot be changed (BatchError).
class PyBatch : public Zeroed {
public:
    static PyBatch from_arrays(const ArrayLike& tokens, const OptionalArrayLike& positions,
                               const OptionalArrayLike& seq_ids, const ArrayLike& logits);

    void add(const Integer& token, const Positions& pos, const Ids& seq, const Flag& logits);
    void add_sequence(const ArrayLike& tokens, const Ids& seq, const Positions& pos,
                      const LogitsChoice& logits);
    void add_embeddings(const ArrayLike& array, const Ids& seq, const Positions& pos,
                        const LogitsChoice& logits);
    void clear();
    size_t size() const;

    // The entries for the time of one call. Arrays are copied here and now: what another thread
    // does to them afterwards cannot reach code that has already checked them.
    class Reading {
    public:
        explicit Reading(PyBatch& batch);
        ~Reading() { --batch_.readers_; }
        Reading(const Reading&) = delete;
        Reading& operator=(const Reading&) = delete;
        const BatchView& view() const { return view_; }

    private:
        void copy_arrays();

        PyBatch& batch_;
        BatchView view_;
        std::vector<TokenId> tokens_;
        std::vector<Position> positions_;
        std::vector<int32_t> sequence_begin_;
        std::vector<SequenceId> sequences_;
        std::vector<uint8_t> wants_;
    };

private:
    struct Arrays {
        Int32Array tokens;                            // (n,)
        std::optional<Int32Array> positions;          // (n,) or (n, axes)
        std::optional<Int32Array> seq_ids;            // (n,) or (n, k), -1 fills up
        py::array_t<bool, py::array::c_style> wants;  // (n,)
    };

    // The owned entries, ready to be changed.
    Batch& editable(const char* name);
    void check_unread(const char* name) const;

    Batch batch_;
    std::optional<Arrays> arrays_;
    int readers_ = 0;  // calls that are reading the batch
};

}  // namespace plait::python
