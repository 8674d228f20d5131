#include "batch.h"

#include <pybind11/critical_section.h>

#include <algorithm>
#include <array>

#include "sequence.h"

namespace plait::python {
namespace {

constexpr int kMaxAxes = 4;
constexpr SequenceId kNoSequence = -1;  // padding of seq_ids

// A list that needs no allocation for up to kMaxAxes values: the positions or sequences of one
// entry.
template <typename T>
class SmallList {
public:
    void push_back(const T& value) {
        if (n_ < inline_.size() && more_.empty()) {
            inline_[n_++] = value;
            return;
        }
        if (more_.empty()) more_.assign(inline_.begin(), inline_.end());
        more_.push_back(value);
    }
    std::span<const T> values() const {
        return more_.empty() ? std::span<const T>(inline_.data(), n_) : std::span<const T>(more_);
    }

private:
    std::array<T, kMaxAxes> inline_{};
    size_t n_ = 0;
    std::vector<T> more_;
};

// Appends one position or several.
void read_positions(py::handle value, SmallList<Position>& out) {
    if (PyLong_Check(value.ptr())) {
        out.push_back(to_int32<BatchError>("pos", value));
        return;
    }
    std::vector<int32_t> values;
    to_int32s<BatchError>("pos", value, values);
    for (const int32_t v : values) out.push_back(v);
}

// The sequences of an entry: the argument `seq`, which names one or several.
class EntrySequences {
public:
    explicit EntrySequences(py::handle seq) {
        const bool single = PyLong_Check(seq.ptr()) || (PyIndex_Check(seq.ptr()) && !is_array(seq));
        if (single)
            add(seq);
        else if (PyUnicode_Check(seq.ptr()) || PyBytes_Check(seq.ptr()) ||
                 PyByteArray_Check(seq.ptr()) || !py::isinstance<py::iterable>(seq))
            wrong_type("seq", "a sequence or several", seq);
        else if (is_array(seq)) {
            const Int32Array ids = int32_array<BatchError>("seq", seq);
            for (const py::handle item : ids.attr("flat")) add(item);
        } else {
            for (const py::handle item : seq) add(item);
        }
    }
    std::span<const SequenceId> ids() const { return ids_.values(); }
    std::span<const SequenceRef> refs() const { return refs_.values(); }

private:
    void add(py::handle one) {
        refs_.push_back(sequence_ref<BatchError>("seq", one));
        const SequenceId id = refs_.values().back().id;
        if (id < 0) throw BatchError(text("seq: expected at least 0, got ", id));
        ids_.push_back(id);
    }

    SmallList<SequenceId> ids_;
    SmallList<SequenceRef> refs_;
};

// Appends a sequence unless the last one is the same.
void note_sequence(std::vector<BatchSequence>& named, const SequenceRef& sequence, size_t entry) {
    if (named.empty() || named.back().sequence != sequence) named.push_back({sequence, entry});
}

void check_positions(const char* name, std::span<const Position> positions) {
    for (const Position p : positions)
        if (p < 0) throw BatchError(text(name, ": expected at least 0, got ", p));
}

// The positions of n entries. `pos` is None (the entries continue their sequences), an integer (the
// first of consecutive positions), or an array of shape (n,) or (n, axes).
class EntryPositions {
public:
    EntryPositions(py::handle pos, py::ssize_t n) {
        if (pos.is_none()) return;
        if (PyLong_Check(pos.ptr()) || (PyIndex_Check(pos.ptr()) && !is_array(pos))) {
            first_ = to_int32<BatchError>("pos", pos);
        } else {
            array_ = int32_array<BatchError>("pos", pos);
            if (array_->ndim() == 0) {
                first_ = *array_->data();
                array_.reset();
            }
        }
        if (!array_) {
            check_positions("pos", std::span(&*first_, 1));
            if (n > 0 && *first_ > INT32_MAX - n)
                throw BatchError(text("pos: ", n, " entries from position ", *first_,
                                      " exceed the max position ", INT32_MAX - 1));
            return;
        }
        const bool matrix = array_->ndim() == 2;
        if (array_->ndim() > 2 || array_->shape(0) != n)
            throw BatchError(text("pos: expected the shape (", n, ",) or (", n,
                                  ", n_pos_per_token), got ", shape_text(*array_)));
        axes_ = matrix ? static_cast<size_t>(array_->shape(1)) : 1;
        if (axes_ != 1 && axes_ != kMaxAxes)
            throw BatchError(
                text("pos: expected 1 or ", kMaxAxes, " positions per entry, got ", axes_));
        check_positions("pos", {array_->data(), static_cast<size_t>(array_->size())});
    }

    std::span<const Position> of(py::ssize_t entry) {
        if (array_) return {array_->data() + static_cast<size_t>(entry) * axes_, axes_};
        if (!first_) return {};
        current_ = *first_ + static_cast<Position>(entry);
        return {&current_, 1};
    }

private:
    std::optional<Position> first_;
    std::optional<Int32Array> array_;
    size_t axes_ = 1;
    Position current_ = 0;
};

// Which of n entries request an output row.
class EntryOutputs {
public:
    EntryOutputs(py::handle logits, py::ssize_t n) : n_(n) {
        if (PyBool_Check(logits.ptr()))
            throw py::type_error(text(
                "logits: expected \"last\", \"all\", \"none\" or an array of ", n, " bools, got ",
                logits.is(py::bool_(true)) ? "True; use \"last\" or \"all\""
                                           : "False; use \"none\""));
        if (!PyUnicode_Check(logits.ptr())) {
            mask_ = mask_array("logits", logits, n);
            return;
        }
        const auto name = to_text("logits", logits);
        if (name == "all")
            all_ = true;
        else if (name == "last")
            last_ = true;
        else if (name != "none")
            throw InvalidArgument(
                text("logits: expected \"last\", \"all\", \"none\" or an array of ", n,
                     " bools, got \"", name, "\""));
    }
    bool operator()(py::ssize_t entry) const {
        if (mask_) return mask_->data()[entry];
        return all_ || (last_ && entry == n_ - 1);
    }

private:
    py::ssize_t n_;
    bool all_ = false, last_ = false;
    std::optional<py::array_t<bool, py::array::c_style>> mask_;
};

py::ssize_t vector_length(const char* name, const py::array& array) {
    if (array.ndim() != 1)
        throw BatchError(text(name, ": expected the shape (n,), got ", shape_text(array)));
    return array.shape(0);
}

// The shape of `positions` of from_arrays(), which has one or two axes.
void check_axes(const py::array& positions) {
    const py::ssize_t axes = positions.ndim() == 2 ? positions.shape(1) : 1;
    if (axes != 1 && axes != kMaxAxes)
        throw BatchError(
            text("positions: expected 1 or ", kMaxAxes, " positions per entry, got ", axes));
}

// An array of from_arrays() belongs to the caller, who may have changed its dtype, strides or shape
// in place since.
template <typename Array>
void check_layout(const char* name, const Array& array) {
    if (!py::isinstance<Array>(array))
        throw BatchError(text(name,
                              ": the dtype or the strides of the array have been changed; make a "
                              "new batch"));
}

template <typename Array>
void check_rows(const char* name, const Array& array, py::ssize_t n, py::ssize_t max_ndim) {
    check_layout(name, array);
    if (array.ndim() < 1 || array.ndim() > max_ndim || array.shape(0) != n)
        throw BatchError(text(name, ": the array has been resized; expected ", n, " rows, got ",
                              shape_text(array), "; make a new batch"));
}

}  // namespace

PyBatch PyBatch::from_arrays(const ArrayLike& tokens, const OptionalArrayLike& positions,
                             const OptionalArrayLike& seq_ids, const ArrayLike& logits) {
    Arrays arrays;
    arrays.tokens = int32_array<BatchError>("tokens", tokens);
    const py::ssize_t n = vector_length("tokens", arrays.tokens);
    const auto rows = [n](const char* name, py::handle value) -> std::optional<Int32Array> {
        if (value.is_none()) return std::nullopt;
        auto array = int32_array<BatchError>(name, value);
        if (array.ndim() < 1 || array.ndim() > 2 || array.shape(0) != n)
            throw BatchError(text(name, ": expected the shape (", n, ",) or (", n, ", k), got ",
                                  shape_text(array)));
        return array;
    };
    arrays.positions = rows("positions", positions);
    if (arrays.positions) check_axes(*arrays.positions);
    PyBatch batch;
    arrays.seq_ids = rows("seq_ids", seq_ids);
    if (arrays.seq_ids && !is_array(seq_ids) && !py::hasattr(seq_ids, "__dlpack__")) {
        // A list can hold Sequence objects.
        const py::object items =
            py::module_::import("numpy").attr("array")(seq_ids, py::arg("dtype") = "object");
        const auto per_entry = static_cast<size_t>(
            std::max<py::ssize_t>(1, arrays.seq_ids->ndim() == 2 ? arrays.seq_ids->shape(1) : 1));
        size_t i = 0;
        for (const py::handle item : items.attr("flat")) {
            const auto ref = sequence_ref<BatchError>("seq_ids", item);
            if (ref.id != kNoSequence || per_entry == 1)
                note_sequence(batch.named_, ref, i / per_entry);
            ++i;
        }
    }
    arrays.output_mask = mask_array("logits", logits, n);
    batch.arrays_ = std::move(arrays);
    return batch;
}

void PyBatch::check_unread(const char* name) const {
    if (readers_ > 0)
        throw BatchError(text(name, ": the batch cannot be changed while a context is reading it"));
}

Batch& PyBatch::editable(const char* name) {
    check_unread(name);
    if (arrays_) {
        const Reading reading(*this);
        const BatchView& view = reading.view();
        const auto axes = static_cast<size_t>(view.axes);
        Batch batch;
        batch.reserve(view.size);
        for (size_t i = 0; i < view.size; ++i)
            batch.add(
                view.tokens[i],
                view.positions.empty() ? view.positions : view.positions.subspan(i * axes, axes),
                view.sequences_of(i), view.wants[i] != 0);
        named_ = reading.named();
        batch_ = std::move(batch);
        arrays_.reset();
    }
    return batch_;
}

template <typename Add>
void PyBatch::add_entries(const char* name, std::span<const SequenceRef> sequences, Add add) {
    Batch& batch = editable(name);
    const size_t n_named = named_.size();
    try {
        for (const SequenceRef& sequence : sequences) note_sequence(named_, sequence, batch.size());
        add(batch);
    } catch (...) {
        named_.resize(n_named);
        throw;
    }
}

void PyBatch::add(const Integer& token, const Positions& pos, const Ids& seq, const Flag& logits) {
    const int32_t id = to_int32<BatchError>("token", token);
    SmallList<Position> positions;
    if (!pos.is_none()) {
        read_positions(pos, positions);
        check_positions("pos", positions.values());
    }
    const EntrySequences sequences(seq);
    const bool output = to_bool("logits", logits);
    add_entries("add", sequences.refs(),
                [&](Batch& batch) { batch.add(id, positions.values(), sequences.ids(), output); });
}

void PyBatch::add_sequence(const ArrayLike& tokens, const Ids& seq, const Positions& pos,
                           const LogitsChoice& logits) {
    const auto ids = int32_array<BatchError>("tokens", tokens);
    const py::ssize_t n = vector_length("tokens", ids);
    const EntrySequences sequences(seq);
    EntryPositions positions(pos, n);
    const EntryOutputs outputs(logits, n);
    if (n == 0) return;
    add_entries("add_sequence", sequences.refs(), [&](Batch& batch) {
        batch.reserve(std::max(batch.size() + static_cast<size_t>(n), 2 * batch.size()));
        for (py::ssize_t i = 0; i < n; ++i)
            batch.add(ids.data()[i], positions.of(i), sequences.ids(), outputs(i));
    });
}

void PyBatch::add_embeddings(const ArrayLike& array, const Ids& seq, const Positions& pos,
                             const LogitsChoice& logits, const Flag& both_directions) {
    const bool both = to_bool("both_directions", both_directions);
    const py::array given = as_array("array", array, "an array of float32");
    if (given.dtype().kind() != 'f')
        throw py::type_error("array: expected an array of float32, got " + short_repr(array));
    const py::array_t<float, py::array::c_style | py::array::forcecast> rows(given);
    if (rows.ndim() != 2)
        throw BatchError("array: expected the shape (n, n_embd), got " + shape_text(rows));
    const py::ssize_t n = rows.shape(0);
    const auto width = static_cast<size_t>(rows.shape(1));
    const EntrySequences sequences(seq);
    EntryPositions positions(pos, n);
    const EntryOutputs outputs(logits, n);
    if (n == 0) return;
    add_entries("add_embeddings", sequences.refs(), [&](Batch& batch) {
        for (py::ssize_t i = 0; i < n; ++i)
            batch.add_embedding({rows.data() + static_cast<size_t>(i) * width, width},
                                positions.of(i), sequences.ids(), outputs(i), both);
    });
}

void PyBatch::clear() {
    check_unread("clear");
    arrays_.reset();
    batch_.clear();
    named_.clear();
}

size_t PyBatch::size() const { return arrays_ ? arrays_->n_tokens() : batch_.size(); }

size_t PyBatch::Arrays::n_tokens() const {
    check_layout("tokens", tokens);
    return static_cast<size_t>(vector_length("tokens", tokens));
}

bool PyBatch::both_directions() const { return !arrays_ && batch_.view().both_directions; }

PyBatch::Reading::Reading(PyBatch& batch) : batch_(batch) {
    if (batch.arrays_)
        copy_arrays();
    else
        view_ = batch.batch_.view();
    ++batch_.readers_;
}

ArgumentReading::ArgumentReading(PyBatch& batch) {
#if defined(Py_GIL_DISABLED)
    object_ = py::cast(batch, py::return_value_policy::reference);
#endif
    const py::scoped_critical_section lock(object_);
    reading_.emplace(batch);
}

ArgumentReading::~ArgumentReading() {
    const py::scoped_critical_section lock(object_);
    reading_.reset();
}

void PyBatch::Reading::check_sequences(const Handles& handles, Access access) const {
    for (const auto& [sequence, entry] : named()) {
        SequenceRef ref = sequence;
        ref.access = access;
        if (const auto problem = handles.problem(ref))
            throw BatchError(text("entry ", entry, ": ", ref.argument, ": ", *problem));
    }
}

void PyBatch::Reading::copy_sequences(const Int32Array& seq_ids) {
    const auto n = static_cast<size_t>(seq_ids.shape(0));
    const size_t k = n == 0 ? 0 : static_cast<size_t>(seq_ids.size()) / n;
    const bool unnamed = batch_.named_.empty();
    sequence_begin_.push_back(0);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < k; ++j) {
            const SequenceId id = seq_ids.data()[i * k + j];
            if (k > 1 && id == kNoSequence) continue;
            sequences_.push_back(id);
            if (unnamed) note_sequence(named_, {.id = id, .argument = "seq_ids"}, i);
        }
        sequence_begin_.push_back(static_cast<int32_t>(sequences_.size()));
    }
}

void PyBatch::Reading::copy_arrays() {
    const Arrays& arrays = *batch_.arrays_;
    const size_t n = arrays.n_tokens();
    const auto rows = static_cast<py::ssize_t>(n);
    tokens_.assign(arrays.tokens.data(), arrays.tokens.data() + n);
    check_rows("logits", arrays.output_mask, rows, 1);
    output_mask_.resize(n);
    std::copy_n(arrays.output_mask.data(), n, output_mask_.begin());
    if (arrays.positions) {
        check_rows("positions", *arrays.positions, rows, 2);
        check_axes(*arrays.positions);
        positions_.assign(arrays.positions->data(),
                          arrays.positions->data() + arrays.positions->size());
        check_positions("positions", positions_);
        view_.axes = n == 0 ? 1 : static_cast<int>(positions_.size() / n);
    }
    if (!arrays.seq_ids) {
        sequences_.assign(n, 0);
        if (n > 0) note_sequence(named_, {.argument = "seq_ids"}, 0);
    } else {
        check_rows("seq_ids", *arrays.seq_ids, rows, 2);
        copy_sequences(*arrays.seq_ids);
    }
    view_.tokens = tokens_;
    view_.positions = positions_;
    view_.sequence_begin = sequence_begin_;
    view_.sequences = sequences_;
    view_.wants = output_mask_;
    view_.size = n;
}

namespace {

using BatchClass = py::class_<PyBatch>;

constexpr size_t kMaxShown = 32;  // entries in a notebook

std::string batch_repr(const PyBatch& self) {
    const size_t n = self.size();
    return text("<plait.Batch of ", n, n == 1 ? " entry>" : " entries>");
}

std::string joined(std::span<const int32_t> values) {
    std::string result;
    for (const int32_t value : values) result += text(result.empty() ? "" : ", ", value);
    return result;
}

py::str batch_html(PyBatch& self) {
    const PyBatch::Reading reading(self);
    const BatchView& view = reading.view();
    const auto axes = static_cast<size_t>(view.axes);
    py::list entries;
    for (size_t i = 0; i < std::min(view.size, kMaxShown); ++i) {
        const bool continues = view.positions.empty() || view.positions[i * axes] == kNextPosition;
        entries.append(py::make_tuple(
            view.tokens.empty() ? text("embedding of ", view.width) : text(view.tokens[i]),
            continues ? "next" : joined(view.positions.subspan(i * axes, axes)),
            joined(view.sequences_of(i)), view.wants[i] != 0));
    }
    return py::module_::import("plait.display.tables")
        .attr("batch_html")(batch_repr(self), view.size, entries);
}

using BatchArrays = py::typing::Tuple<py::array, py::object, Int32Array, py::array_t<bool>>;

// Returns copies of the entries in the form that from_arrays() and add_embeddings() accept, except
// for `both_directions`.
BatchArrays to_arrays(PyBatch& self) {
    const PyBatch::Reading reading(self);
    const BatchView& view = reading.view();
    const auto n = static_cast<py::ssize_t>(view.size);
    py::array entries;
    if (view.embeddings.empty())
        entries = take_vector(std::vector(view.tokens.begin(), view.tokens.end()), {n});
    else
        entries = take_vector(std::vector(view.embeddings.begin(), view.embeddings.end()),
                              {n, static_cast<py::ssize_t>(view.width)});
    py::object positions = py::none();
    if (!view.positions.empty()) {
        std::vector<py::ssize_t> shape{n};
        if (view.axes != 1) shape.push_back(view.axes);
        positions = take_vector(std::vector(view.positions.begin(), view.positions.end()),
                                std::move(shape));
    }
    size_t per_entry = 1;
    for (size_t i = 0; i < view.size; ++i)
        per_entry = std::max(per_entry, view.sequences_of(i).size());
    std::vector<int32_t> sequences(view.size * per_entry, kNoSequence);
    for (size_t i = 0; i < view.size; ++i)
        std::ranges::copy(view.sequences_of(i),
                          sequences.begin() + static_cast<std::ptrdiff_t>(i * per_entry));
    py::array_t<bool> wanted(n);
    std::ranges::copy(view.wants, wanted.mutable_data());
    return py::make_tuple(
        entries, positions,
        take_vector(std::move(sequences), {n, static_cast<py::ssize_t>(per_entry)}), wanted);
}

void bind_to_arrays(BatchClass& batch) {
    batch.def("to_arrays", &to_arrays, R"(Return copies of the entries as arrays.

Returns:
    A tuple (tokens, positions, seq_ids, logits). `tokens` is int32 (n,), or float32 (n, n_embd) for
    embeddings. `positions` is int32, (n,) or (n, n_pos_per_token), -1 where an entry continues its
    sequence; or None if all do. `seq_ids` is int32 (n, k), padded with -1 where an entry has fewer
    than k sequences. `logits` is bool (n,), True for each entry that requests an output row.
    add_embeddings() also needs the attribute `both_directions`, which is not among them.

Raises:
    BatchError: The dtype, the strides or the shape of an array of from_arrays() has been changed, or
        a position is negative.)");
}

void bind_from_arrays(BatchClass& batch) {
    batch.def_static("from_arrays", &PyBatch::from_arrays, py::arg("tokens"), py::arg("positions"),
                     py::arg("seq_ids"), py::arg("logits"), R"(Create a batch that refers to arrays.

C-contiguous arrays of the given dtypes are not copied: decode() reads their contents at the time of
the call. Tensors of other libraries that support DLPack (torch, jax) count as arrays. Other arguments
are converted now. Adding entries to such a batch copies the arrays first. If the dtype, the strides or
the shape of an array is changed in place, later uses of the batch raise BatchError.

Args:
    tokens: int32 array of shape (n,).
    positions: int32 array of shape (n,) or (n, n_pos_per_token), not negative. None: every entry
        continues its sequence.
    seq_ids: int32 array of shape (n,) or (n, k), padded with -1 where a token has fewer than k
        sequences; or a list, which may contain Sequence objects. None: sequence 0.
    logits: bool array of shape (n,), True for each entry that requests an output row.

Returns:
    The Batch.

Raises:
    BatchError: A shape does not match, or a value does not fit int32.
    TypeError: An element is not an integer, or in `logits` not a bool.)");
}

void bind_additions(BatchClass& batch) {
    batch
        .def("add", &PyBatch::add, py::arg("token"), py::arg("pos") = py::none(),
             py::arg("seq") = 0, py::arg("logits") = false, R"(Add one token.

Args:
    token: Token id.
    pos: Position in the sequence, from 0. For M-RoPE models (t, y, x, 0); an int p is short for
        (p, p, p, 0). None: the position after the largest one of the sequence.
    seq: Sequence or id, or several. A token of several sequences is computed once and shared.
    logits: Request an output row.

Raises:
    BatchError: The batch contains embeddings, a position is negative, or a value does not fit
        int32.
    TypeError: An argument has the wrong type.)")
        .def("add_sequence", &PyBatch::add_sequence, py::arg("tokens"), py::arg("seq") = 0,
             py::arg("pos") = py::none(), py::arg("logits") = "last",
             R"(Add consecutive tokens of a sequence.

Args:
    tokens: Token ids, shape (n,). Adds nothing if n is 0.
    seq: Sequence or id, or several.
    pos: Position of the first token, or positions of shape (n,) or (n, n_pos_per_token). None: the
        tokens continue the sequence.
    logits: Which tokens request an output row: "last", "all", "none" or a bool array of shape (n,).

Raises:
    BatchError: The batch contains embeddings, a shape does not match, a position is negative, or a
        value does not fit int32.
    TypeError: An element is not an integer.
    ValueError: `logits` is another string.)")
        .def("add_embeddings", &PyBatch::add_embeddings, py::arg("array"), py::arg("seq") = 0,
             py::arg("pos") = py::none(), py::arg("logits") = "last",
             py::arg("both_directions") = false,
             R"(Add consecutive entries as embeddings instead of token ids.

Args:
    array: float32 array of shape (n, n_embd).
    seq: Sequence or id, or several.
    pos: Position of the first entry, or positions of shape (n,) or (n, n_pos_per_token). None: the
        entries continue the sequence.
    logits: Which entries request an output row: "last", "all", "none" or a bool array of shape (n,).
    both_directions: True if entries also attend to later entries of their sequence in this batch, as
        the embeddings of an image do in Gemma 3. In Gemma 4, this holds for layers with a sliding
        window only. The entries of a sequence are then computed at once, so there may be at most
        n_ubatch.

Raises:
    BatchError: The batch contains tokens, embeddings of another width, or others whose
        `both_directions` differs; or a shape does not match.
    TypeError: The elements are not floats.
    ValueError: `logits` is another string.)");
}

}  // namespace

void bind_batch(py::module_& m) {
    BatchClass batch(m, "Batch",
                     R"(Tokens or embeddings to process, with sequence ids and positions.

add(), add_sequence() and add_embeddings() copy their arguments; the arrays of from_arrays() are read
when decode() is called. A batch can be decoded several times, but not changed during a call.

A `Sequence` is accepted wherever a sequence id is expected. decode() checks that it is still open and
belongs to the context. While a Sequence is open, decode() does not accept its bare id; this includes the
default, 0.)");
    bind_from_arrays(batch);
    bind_to_arrays(batch);
    bind_additions(batch);
    batch.def("__init__", init(+[] { return PyBatch(); }), py::detail::is_new_style_constructor())
        .def("clear", &PyBatch::clear, R"(Remove all entries.

Raises:
    BatchError: A context is reading the batch.)")
        .def_property_readonly(
            "both_directions", &PyBatch::both_directions,
            "True if the entries also attend to later entries of their sequence: see "
            "add_embeddings().")
        .def("__len__", &PyBatch::size)
        .def("__repr__", &batch_repr)
        .def("_repr_html_", &batch_html);
}

}  // namespace plait::python
