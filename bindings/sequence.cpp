#include "sequence.h"

#include <algorithm>
#include <atomic>

namespace plait::python {

void Handles::open(SequenceId id, const std::shared_ptr<Handle>& handle) noexcept {
    static std::atomic<uint64_t> n_handles{0};
    handle->number = ++n_handles;
    by_id_[static_cast<size_t>(id)] = handle;
}

void Handles::close(SequenceId id) noexcept {
    const std::shared_ptr<Handle> closed = std::move(by_id_[static_cast<size_t>(id)]);
    closed->open = false;
}

void Handles::reserve(size_t n_ids) {
    if (by_id_.size() < n_ids) by_id_.resize(n_ids);
}

std::optional<std::string> Handles::problem(const SequenceRef& ref) const {
    const Handle* const owns = owner(ref.id);
    if (ref.handle == 0) {
        if (owns == nullptr || ref.access == Access::read) return std::nullopt;
        return text("id ", ref.id, " belongs to an open Sequence; pass that Sequence instead of ",
                    ref.id, ", also where ", ref.id, " is the default");
    }
    if (ref.context != context_) return "the Sequence belongs to another context";
    if (owns == nullptr || owns->number != ref.handle)
        return text("sequence ", ref.id, " is closed");
    return std::nullopt;
}

void Handles::begin_transaction(uint64_t number) {
    transactions_.push_back({number, {by_id_.begin(), by_id_.end()}});
}

void Handles::roll_back_transaction() noexcept {
    const std::vector<std::weak_ptr<Handle>>& saved = transactions_.back().by_id;
    for (size_t id = 0; id < by_id_.size(); ++id) {
        std::shared_ptr<Handle> before = id < saved.size() ? saved[id].lock() : nullptr;
        if (before == by_id_[id]) continue;
        if (by_id_[id]) by_id_[id]->open = false;
        if (before) before->open = true;
        by_id_[id] = std::move(before);
    }
    transactions_.pop_back();
}

bool Handles::in_transaction(uint64_t number) const {
    return std::ranges::find(transactions_, number, &Transaction::number) != transactions_.end();
}

void Handles::check(const SequenceRef& ref) const {
    if (const auto found = problem(ref)) throw InvalidArgument(text(ref.argument, ": ", *found));
}

namespace {

// Does nothing if the handle is closed: another thread may do so meanwhile.
void close_sequence(SharedContext& shared, const Handle& handle, SequenceId id) {
    shared.change_handles([&](Context& context, Handles& handles) {
        if (!handles.owns(handle, id)) return;
        context.close_sequence(id);
        handles.close(id);
    });
}

}  // namespace

PySequence::~PySequence() {
    if (closed()) return;
    shared_->close_from_destructor(
        [shared = shared_, handle = handle_, id = id_] { close_sequence(*shared, *handle, id); });
}

void PySequence::open(const std::shared_ptr<SharedContext>& shared) {
    auto handle = std::make_shared<Handle>();
    shared->change_handles([&](Context& context, Handles& handles) {
        handles.reserve(static_cast<size_t>(context.settings().n_seq_max()));
        id_ = context.session()->open_sequence();
        handles.open(id_, handle);
    });
    handle_ = std::move(handle);
    shared_ = shared;
}

void PySequence::close() {
    if (!closed()) close_sequence(*shared_, *handle_, id_);
}

SequenceId PySequence::id() const {
    initialized(shared_);
    if (closed()) throw InvalidArgument(text("sequence ", id_, " is closed"));
    return id_;
}

SequenceRef PySequence::ref(const char* argument, Access access) const {
    initialized(shared_);
    if (closed()) throw InvalidArgument(text(argument, ": sequence ", id_, " is closed"));
    return {id_, handle_->number, shared_.get(), argument, access};
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

The rollback of a transaction that was open undoes this. Does nothing if the handle or the context is
already closed.)");
}

}  // namespace plait::python
