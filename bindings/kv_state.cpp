// KVCache methods that save, load, copy and rewind its state.
#include <optional>
#include <span>

#include "convert.h"
#include "kv_cache.h"
#include "runtime/state/state_file.h"
#include "sequence.h"

namespace plait::python {
namespace {

// Returns f(context, id, handles), called for the sequence that the argument names; the id is
// nullopt for None. No handle is opened or closed meanwhile.
template <typename F>
auto call_for(const PyKvCache& self, py::handle seq, Access access, F&& f) {
    std::optional<SequenceRef> sequence;
    if (!seq.is_none()) sequence = sequence_ref("seq", seq, access);
    return initialized(self.shared)->call_with_handles([&](Context& c, const Handles& handles) {
        if (sequence) handles.check(*sequence);
        const auto id = sequence ? std::optional(sequence->id) : std::nullopt;
        return std::forward<F>(f)(c, id, handles);
    });
}

// A state that is loaded under the id it was saved from must not replace the sequence of a handle.
AllowSequence unowned(const Handles& handles) {
    return [&handles](SequenceId id) { handles.check({.id = id}); };
}

// Counts in the same call, so that other threads do not decode between the two.
void load_state(const PyKvCache& self, py::handle seq, std::span<const std::byte> state) {
    call_for(self, seq, Access::change, [&](Context& c, auto id, const Handles& handles) {
        const auto session = c.session().lock();
        session->load_state(state, id, unowned(handles));
        if (!id) self.shared->note_replaced();
    });
}

// Holds the contiguous buffer of a Python object.
class BufferView {
public:
    explicit BufferView(py::handle object) {
        if (PyUnicode_Check(object.ptr()) ||
            PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
            if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0)
                throw py::error_already_set();
            PyErr_Clear();
            wrong_type("data", "bytes or a contiguous buffer", object);
        }
    }
    ~BufferView() { PyBuffer_Release(&buffer_); }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;
    std::span<const std::byte> view() const {
        return {static_cast<const std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
    }

private:
    Py_buffer buffer_{};
};

// Allocates the bytes object during the call, once its size is known, so that the state is never in
// memory twice.
py::bytes to_bytes(const PyKvCache& self, const OptionalSequenceArg& seq) {
    py::object result;
    const auto allocate = [&](uint64_t n) {
        const py::gil_scoped_acquire locked;
        result = py::reinterpret_steal<py::object>(
            PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n)));
        if (!result) throw py::error_already_set();
        return std::span(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(result.ptr())), n);
    };
    call_for(self, seq, Access::read,
             [&](Context& c, auto id, const Handles&) { c.session()->save_state(id, allocate); });
    return result;
}

void from_bytes(const PyKvCache& self, const BytesLike& data, const OptionalSequenceArg& seq) {
    const BufferView bytes(data);
    load_state(self, seq, bytes.view());
}

void save(const PyKvCache& self, const PathLike& path, const OptionalSequenceArg& seq) {
    const std::string file = to_path("path", path);
    FileBytes state;
    call_for(self, seq, Access::read, [&](Context& c, auto id, const Handles&) {
        c.session()->save_state(id, [&](uint64_t n) {
            state = FileBytes(n);
            return state.all();
        });
    });
    // Without locks, so that other threads can use the context meanwhile.
    self.call([&](Context&) { write_state_file(file, state.view()); });
}

void load(const PyKvCache& self, const PathLike& path, const OptionalSequenceArg& seq) {
    const std::string file = to_path("path", path);
    const FileBytes state = self.call([&](Context&) { return read_state_file(file); });
    with_path(file, [&] { load_state(self, seq, state.view()); });
}

void copy_to(const PyKvCache& self, const ContextObject& other) {
    if (!py::isinstance<PyContext>(other)) wrong_type("other", "a Context", other);
    SharedContext& target = *initialized(py::cast<const PyContext&>(other).shared);
    if (initialized(self.shared).get() == &target)
        return self.call([](Context& c) { c.copy_state_to(c); });
    self.shared->call_with(target, [&target](Context& from, Context& to) {
        from.copy_state_to(to);
        target.note_replaced();
    });
}

Position seq_rewind(const PyKvCache& self, const SequenceArg& seq, const Integer& pos) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const int32_t next = to_int32("pos", pos);
    return self.session_on({sequence}, [&](Session& s) { return s.rewind(sequence.id, next); });
}

// Binds copies between contexts, and rewinding.
void bind_copies(KvCacheClass& kv) {
    kv.def_property_readonly(
          "n_replaced",
          [](const PyKvCache& self) { return initialized(self.shared)->n_replaced(); },
          R"(Number of times that load(), from_bytes(), copy_to() or a rollback replaced all sequences.

A program that uses the sequences can compare it to notice that another one replaced them.)")
        .def("copy_to", &copy_to, py::arg("other"),
             R"(Replace the cache of another context with a copy of this one.

Args:
    other: A context of the same model with the same cache types.

Raises:
    StateError: The contexts do not match; other errors are those of from_bytes().)")
        .def("seq_rewind", &seq_rewind, py::arg("seq"), py::arg("pos"),
             R"(Roll a sequence back so that it ends before position `pos`, or earlier if necessary.

Sliding windows and recurrent states discard what a sequence no longer needs. Such a sequence can
return only to a point that a fork of it (seq_cp) still holds, to its start, or to a position whose
window is still stored.

Args:
    seq: Sequence id.
    pos: First position to remove.

Returns:
    The position at which the sequence continues; decode the tokens from there again.

Raises:
    ValueError: The id or the position is invalid.)");
}

}  // namespace

void bind_kv_state(KvCacheClass& kv) {
    kv.def("to_bytes", &to_bytes, py::arg("seq") = py::none(),
           R"(Return the contents of the cache as bytes.

The bytes include the model's identity, the cache types and checksums. Equal contents give equal
bytes, regardless of the storage rows and of earlier operations. Pending shifts are applied first.

Args:
    seq: Id of the sequence to save. None: all sequences.

Returns:
    The saved state.

Raises:
    ValueError: The id is invalid.

Source: cpp/runtime/state/state_format.h)")
        .def("from_bytes", &from_bytes, py::arg("data"), py::arg("seq") = py::none(),
             R"(Restore a state that to_bytes() saved from any context of the same model.

A state of all sequences replaces the whole cache; a state of one sequence replaces that sequence.
n_ctx, n_seq_max, kv ("unified" or "streams"), flash_attention and the device may differ if the state
fits. The cache is unchanged if an exception is raised.

Args:
    data: The saved bytes, in any contiguous buffer.
    seq: Id of the sequence to load a single-sequence state into. None: the id it was saved from.

Raises:
    StateError: The bytes are damaged or are not a state, or the model, the cache types or the window
        differ. The message names the difference.
    CacheFull: The state needs more cells than are free.)")
        .def("save", &save, py::arg("path"), py::arg("seq") = py::none(),
             R"(Write to_bytes(seq) to a file.

An existing file is replaced atomically at the end. A process that dies earlier leaves the old file
and "{path}.plait-tmp", which the next save to the same path removes.

Args:
    path: Path of the file.
    seq: Id of the sequence to save. None: all sequences.

Raises:
    StateError: The file cannot be written.)")
        .def("load", &load, py::arg("path"), py::arg("seq") = py::none(),
             R"(Restore a state from a file that save() wrote.

Args:
    path: Path of the file.
    seq: Id of the sequence to load a single-sequence state into. None: the id it was saved from.

Raises:
    StateError: The file cannot be read; other errors are those of from_bytes().)");
    bind_copies(kv);
}

}  // namespace plait::python
