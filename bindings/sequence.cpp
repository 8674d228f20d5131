#include "sequence.h"

#include <atomic>
#include <mutex>

namespace plait::python {

uint64_t Handles::open(SequenceId id) {
    static std::atomic<uint64_t> n_handles{0};
    const auto index = static_cast<size_t>(id);
    if (by_id_.size() <= index) by_id_.resize(index + 1);
    return by_id_[index] = ++n_handles;
}

void Handles::close(SequenceId id) { by_id_[static_cast<size_t>(id)] = 0; }

void Handles::reserve(size_t n_ids) {
    if (by_id_.size() < n_ids) by_id_.resize(n_ids);
}

std::optional<std::string> Handles::problem(const SequenceRef& ref) const {
    if (ref.handle == 0) {
        const auto index = static_cast<size_t>(ref.id);
        const bool owned = ref.id >= 0 && index < by_id_.size() && by_id_[index] != 0;
        if (!owned || ref.access == Access::read) return std::nullopt;
        return text("id ", ref.id, " belongs to an open Sequence; pass that Sequence instead of ",
                    ref.id, ", also where ", ref.id, " is the default");
    }
    if (ref.context != context_) return "the Sequence belongs to another context";
    if (by_id_[static_cast<size_t>(ref.id)] != ref.handle)
        return text("sequence ", ref.id, " is closed");
    return std::nullopt;
}

void Handles::check(const SequenceRef& ref) const {
    if (const auto found = problem(ref)) throw InvalidArgument(text(ref.argument, ": ", *found));
}

PySequence::~PySequence() {
    try {
        close();
    } catch (...) {
        // Closing fails in a signal handler that interrupted a call of the context.
    }
}

void PySequence::open(const std::shared_ptr<SharedContext>& shared) {
    shared->change_handles([this](Context& context, Handles& handles) {
        handles.reserve(static_cast<size_t>(context.settings().n_seq_max()));
        id_ = context.session()->open_sequence();
        handle_ = handles.open(id_);
    });
    shared_ = shared;
}

void PySequence::close() {
    auto shared = std::exchange(shared_, nullptr);  // so that no other thread closes it as well
    if (!shared) return;
    try {
        shared->change_handles([this](Context& context, Handles& handles) {
            context.close_sequence(id_);
            handles.close(id_);
        });
    } catch (...) {
        shared_ = std::move(shared);
        throw;
    }
}

SequenceId PySequence::id() const {
    if (handle_ == 0) initialized(shared_);
    if (closed()) throw InvalidArgument(text("sequence ", id_, " is closed"));
    return id_;
}

SequenceRef PySequence::ref(const char* argument, Access access) const {
    if (handle_ == 0) initialized(shared_);
    if (closed()) throw InvalidArgument(text(argument, ": sequence ", id_, " is closed"));
    return {id_, handle_, shared_.get(), argument, access};
}

namespace {

PySequence make_sequence(const ContextObject& context) {
    if (!py::isinstance<PyContext>(context)) wrong_type("context", "a Context", context);
    PySequence sequence;
    sequence.open(initialized(py::cast<const PyContext&>(context).shared));
    return sequence;
}

bool belongs_to(const PySequence& self, const ContextObject& context) {
    if (!py::isinstance<PyContext>(context)) wrong_type("context", "a Context", context);
    return self.belongs_to(*initialized(py::cast<const PyContext&>(context).shared));
}

}  // namespace

void bind_sequence(py::module_& m) {
    py::class_<PySequence>(
        m, "SequenceHandle",
        R"(A reserved sequence id. It is released when the object is closed or destroyed.

plait.Sequence is the public class.

Args:
    context: The context whose id is reserved.

Raises:
    CacheFull: All ids are in use.)")
        // Reserves and records the id in one call, because an exception of a signal handler can
        // arrive between any two bytecode instructions.
        .def("__init__", init(&make_sequence), py::detail::is_new_style_constructor(),
             py::arg("context"))
        .def_property_readonly("id", &PySequence::id, "The sequence id.")
        .def_property_readonly("closed", &PySequence::closed, "True once close() was called.")
        .def("belongs_to", &belongs_to, py::arg("context"),
             R"(Return whether this is an open handle of a context.

Args:
    context: The context.)")
        .def("close", &PySequence::close,
             R"(Free the cells and release the id.

Does nothing if the handle or the context is already closed.)");
}

}  // namespace plait::python
