// KVCache: saving, loading, copying, going back.
#include <optional>
#include <span>

#include "convert.h"
#include "kv_cache.h"

namespace plait::python {
namespace {

std::optional<SequenceId> optional_sequence(py::handle value) {
    if (value.is_none()) return std::nullopt;
    return to_int32("seq", value);
}

// The bytes of an object that has some in one piece, for as long as this lives.
class BytesOf {
public:
    explicit BytesOf(py::handle object) {
        if (PyUnicode_Check(object.ptr()) ||
            PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
            if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0)
                throw py::error_already_set();
            PyErr_Clear();
            wrong_type("data", "bytes, or what holds them in one piece", object);
        }
    }
    ~BytesOf() { PyBuffer_Release(&buffer_); }
    BytesOf(const BytesOf&) = delete;
    BytesOf& operator=(const BytesOf&) = delete;
    std::span<const std::byte> view() const {
        return {static_cast<const std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
    }

private:
    Py_buffer buffer_{};
};

// The bytes object is made in the middle of the call, when their number is known: a state is never
// held twice.
py::bytes to_bytes(const PyKvCache& self, const OptionalInteger& seq) {
    const auto sequence = optional_sequence(seq);
    py::object result;
    const auto make_room = [&](uint64_t n) {
        const py::gil_scoped_acquire locked;
        result = py::reinterpret_steal<py::object>(
            PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n)));
        if (!result) throw py::error_already_set();
        return std::span(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(result.ptr())), n);
    };
    self.call([&](Context& c) { c.save_state(sequence, make_room); });
    return result;
}

void from_bytes(const PyKvCache& self, const BytesLike& data, const OptionalInteger& seq) {
    const auto sequence = optional_sequence(seq);
    const BytesOf bytes(data);
    self.call([&](Context& c) { c.load_state(bytes.view(), sequence); });
}

void save(const PyKvCache& self, const PathLike& path, const OptionalInteger& seq) {
    const std::string file = to_path("path", path);
    const auto sequence = optional_sequence(seq);
    self.call([&](Context& c) { c.save_file(file, sequence); });
}

void load(const PyKvCache& self, const PathLike& path, const OptionalInteger& seq) {
    const std::string file = to_path("path", path);
    const auto sequence = optional_sequence(seq);
    self.call([&](Context& c) { c.load_file(file, sequence); });
}

void copy_to(const PyKvCache& self, const ContextObject& other) {
    if (!py::isinstance<PyContext>(other)) wrong_type("other", "a Context", other);
    SharedContext& target = *made(py::cast<const PyContext&>(other).shared);
    if (made(self.shared).get() == &target)
        return self.call([](Context& c) { c.copy_state_to(c); });
    self.shared->call_with(target, [](Context& from, Context& to) { from.copy_state_to(to); });
}

Position seq_rewind(const PyKvCache& self, const Integer& seq, const Integer& pos) {
    const int32_t id = to_int32("seq", seq);
    const int32_t next = to_int32("pos", pos);
    return self.call([&](Context& c) { return c.rewind(id, next); });
}

}  // namespace

void bind_kv_state(KvCacheClass& kv) {
    kv.def("to_bytes", &to_bytes, py::arg("seq") = py::none(),
           R"(What is remembered, as bytes.

They name the model and the cache types, and carry checksums. Equal contents give equal bytes,
whatever rows hold them and whatever happened before. Pending shifts are applied first.

Parameters
----------
seq : int, optional
    One sequence; None: all.

Source: cpp/runtime/state/state_format.h)")
        .def("from_bytes", &from_bytes, py::arg("data"), py::arg("seq") = py::none(),
             R"(Take up what to_bytes() gave, of this context or another one of the same model.

A state of all sequences takes the place of everything, one of a single sequence that of one.
n_ctx, n_seq_max, kv= ("unified" or "streams"), flash_attention and the device may differ, as far
as there is room.

Parameters
----------
data : bytes or a contiguous buffer
seq : int, optional
    The sequence to load into, for a state of a single one. None: the id that it was saved from.

Raises
------
StateError
    The bytes are damaged or no state, or another model, cache type or window made them: the
    message names what differs. Nothing has changed.
CacheFull
    There is no room. Nothing has changed.)")
        .def("save", &save, py::arg("path"), py::arg("seq") = py::none(),
             R"(Write to_bytes(seq) to a file.

A file that is there is replaced as a whole at the end: a process that dies leaves the old one, and
beside it "{path}.plait-tmp", which the next save to the same path takes away. StateError where the
file cannot be written.)")
        .def("load", &load, py::arg("path"), py::arg("seq") = py::none(),
             "Take up a file that save() wrote; arguments and errors are those of from_bytes().")
        .def("copy_to", &copy_to, py::arg("other"),
             R"(Put a copy of all that is remembered in place of all that another context remembers.

Both must be of one model and have the same cache types. Errors are those of from_bytes().)")
        .def("seq_rewind", &seq_rewind, py::arg("seq"), py::arg("pos"),
             R"(Go back to before position `pos`, or as far before it as this memory can.

Windows and recurrent states forget what a sequence no longer needs, so it may go back only to what
a fork of it (seq_cp) still has, or to its beginning.

Returns
-------
int
    The position where the sequence goes on: tokens from there on have to be fed again.)");
}

}  // namespace plait::python
