// The Python class Batch.
#pragma once

#include <optional>

#include "batch/batch.h"
#include "handles.h"
#include "numpy.h"
#include "objects.h"

namespace plait::python {

// A sequence that entries of a batch belong to, and the first of these entries.
struct BatchSequence {
    SequenceRef sequence;
    size_t entry;
};

// Owns entries that were added one by one, or refers to arrays of the caller. Every method requires
// the GIL, or the lock of the object where there is none. Methods that change the batch throw
// BatchError while a Reading exists.
class PyBatch : public ZeroInitialized {
public:
    static PyBatch from_arrays(const ArrayLike& tokens, const OptionalArrayLike& positions,
                               const OptionalArrayLike& seq_ids, const ArrayLike& logits);

    void add(const Integer& token, const Positions& pos, const Ids& seq, const Flag& logits);
    void add_sequence(const ArrayLike& tokens, const Ids& seq, const Positions& pos,
                      const LogitsChoice& logits);
    void add_embeddings(const ArrayLike& array, const Ids& seq, const Positions& pos,
                        const LogitsChoice& logits, const Flag& both_directions);
    void clear();
    size_t size() const;
    bool both_directions() const;  // as in BatchView

    // A view of the entries for the duration of one call. The arrays are copied at construction, so
    // that other threads cannot change values after they have been checked.
    class Reading {
    public:
        explicit Reading(PyBatch& batch);
        ~Reading() { --batch_.readers_; }
        Reading(const Reading&) = delete;
        Reading& operator=(const Reading&) = delete;
        const BatchView& view() const { return view_; }
        // Throws BatchError if the batch names a sequence that a call of the context must not use.
        // A call that does not change the sequences accepts ids of open handles.
        void check_sequences(const Handles& handles, Access access) const;
        const std::vector<BatchSequence>& named() const {
            return named_.empty() ? batch_.named_ : named_;
        }

    private:
        void copy_arrays();
        void copy_sequences(const Int32Array& seq_ids);

        PyBatch& batch_;
        BatchView view_;
        std::vector<TokenId> tokens_;
        std::vector<Position> positions_;
        std::vector<int32_t> sequence_begin_;
        std::vector<SequenceId> sequences_;
        std::vector<uint8_t> output_mask_;
        std::vector<BatchSequence> named_;
    };

private:
    struct Arrays {
        Int32Array tokens;                                  // (n,)
        std::optional<Int32Array> positions;                // (n,) or (n, axes)
        std::optional<Int32Array> seq_ids;                  // (n,) or (n, k), padded with -1
        py::array_t<bool, py::array::c_style> output_mask;  // (n,)

        // Returns n. Throws BatchError if the caller has changed the layout of `tokens`.
        size_t n_tokens() const;
    };

    // Returns the owned entries for a change; copies referenced arrays first.
    Batch& editable(const char* name);
    // Calls add(batch), which adds entries of these sequences.
    template <typename Add>
    void add_entries(const char* name, std::span<const SequenceRef> sequences, Add add);
    void check_unread(const char* name) const;

    Batch batch_;
    std::optional<Arrays> arrays_;
    std::vector<BatchSequence>
        named_;        // in order of entries; for arrays, only sequences that were named in lists
    int readers_ = 0;  // number of Readings
};

// A Reading of a batch that is an argument of another object's method. Without the GIL, other
// threads may call the batch meanwhile, so it is locked while the Reading begins and ends.
class ArgumentReading {
public:
    explicit ArgumentReading(PyBatch& batch);
    ~ArgumentReading();
    ArgumentReading(const ArgumentReading&) = delete;
    ArgumentReading& operator=(const ArgumentReading&) = delete;
    const PyBatch::Reading& operator*() const { return *reading_; }
    const PyBatch::Reading* operator->() const { return &*reading_; }

private:
    py::object object_;  // null on builds with a GIL, which lock nothing
    std::optional<PyBatch::Reading> reading_;
};

}  // namespace plait::python
