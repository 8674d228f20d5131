#include "sequence.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

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

PySequence::~PySequence() {
    try {
        close();
    } catch (...) {
        // Closing fails in a signal handler that interrupted a call of the context.
    }
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
    if (closed()) return;
    shared_->change_handles([this](Context& context, Handles& handles) {
        if (!handles.owns(*handle_, id_)) return;  // another thread has closed it
        context.close_sequence(id_);
        handles.close(id_);
    });
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
             R"(Free the cells and release the id, until the rollback of an open transaction.

Does nothing if the handle or the context is already closed.)");
}

// The Python class Transaction: calls of a context that take effect together or not at all.
namespace {

using Any = py::object;  // an argument of __exit__

enum class TransactionState { created, open, rolled_back, ended };

struct PyTransaction : ZeroInitialized {
    PyTransaction() = default;
    PyTransaction(PyTransaction&&) = default;
    PyTransaction& operator=(PyTransaction&&) = delete;
    ~PyTransaction();

    std::shared_ptr<SharedContext> shared;
    uint64_t number = 0;
    TransactionState state = TransactionState::created;
    std::thread::id thread;
};

enum class End { commit, roll_back };
enum class Ended { normally, with_inner, before, context_closed };

// Ends a transaction and the transactions inside of it, which are rolled back with it. Does
// nothing if it has ended already.
Ended end_all(SharedContext& shared, uint64_t number, End how) {
    Ended result = Ended::normally;
    shared.change_handles([&](Context& context, Handles& handles) {
        context.session().with([&](Session* session) {
            if (session == nullptr) {
                result = Ended::context_closed;
                return;
            }
            if (!handles.in_transaction(number)) {
                result = Ended::before;
                return;
            }
            if (handles.innermost() != number) {
                result = Ended::with_inner;
                how = End::roll_back;
            }
            if (how == End::commit) {
                handles.commit_transaction();
                session->commit_transaction();
                return;
            }
            for (bool last = false; !last;) {
                last = handles.innermost() == number;
                handles.roll_back_transaction();
                session->roll_back_transaction([&](SequenceId id) { return handles.is_owned(id); });
            }
            shared.note_replaced();
        });
    });
    return result;
}

PyTransaction::~PyTransaction() {
    if (!shared || state != TransactionState::open) return;
    try {
        end_all(*shared, number, End::roll_back);
    } catch (...) {
        // Ending fails in a signal handler that interrupted a call of the context.
    }
}

PyTransaction make_transaction(const ContextObject& context) {
    if (!py::isinstance<PyContext>(context)) wrong_type("context", "a Context", context);
    PyTransaction transaction;
    transaction.shared = initialized(py::cast<const PyContext&>(context).shared);
    return transaction;
}

PyTransaction& enter(PyTransaction& self) {
    static std::atomic<uint64_t> n_transactions{0};
    const std::shared_ptr<SharedContext>& shared = initialized(self.shared);
    if (self.state != TransactionState::created)
        throw InvalidArgument(
            "transaction: this one was entered before; call ctx.transaction() for a new one");
    self.number = ++n_transactions;
    shared->change_handles([&](Context& context, Handles& handles) {
        const auto session = context.session().lock();
        handles.begin_transaction(self.number);
        try {
            session->begin_transaction();
        } catch (...) {
            handles.commit_transaction();
            throw;
        }
    });
    self.state = TransactionState::open;
    self.thread = std::this_thread::get_id();
    return self;
}

void check_thread(const PyTransaction& self, const char* call) {
    if (self.thread != std::this_thread::get_id())
        throw InvalidArgument(text("transaction: ", call, " was called in a thread that did not ",
                                   "enter the transaction"));
}

void roll_back(PyTransaction& self) {
    const std::shared_ptr<SharedContext>& shared = initialized(self.shared);
    if (self.state == TransactionState::created)
        throw InvalidArgument(
            "transaction: rollback() was called before the transaction was entered");
    if (self.state == TransactionState::rolled_back)
        throw InvalidArgument("transaction: rollback() was already called");
    if (self.state == TransactionState::ended)
        throw InvalidArgument("transaction: rollback() was called after the transaction had ended");
    check_thread(self, "rollback()");
    const bool has_inner = shared->call_with_handles([&](Context& context, const Handles& handles) {
        context.session().lock();  // throws if the context is closed
        return handles.in_transaction(self.number) && handles.innermost() != self.number;
    });
    if (has_inner)
        throw InvalidArgument(
            "transaction: rollback() was called while an inner transaction is open; end that one "
            "first");
    const Ended ended = end_all(*shared, self.number, End::roll_back);
    self.state = TransactionState::rolled_back;
    if (ended == Ended::before)
        throw InvalidArgument(
            "transaction: rollback() was called after the end of an outer transaction, which had "
            "already rolled this one back");
}

void exit(PyTransaction& self, const Any& kind, const Any&, const Any&) {
    if (self.state == TransactionState::created)
        throw InvalidArgument("transaction: __exit__() was called before __enter__()");
    if (self.state != TransactionState::open) return;
    check_thread(self, "__exit__()");
    const bool failed = !kind.is_none();
    const Ended ended = end_all(*self.shared, self.number, failed ? End::roll_back : End::commit);
    self.state = TransactionState::ended;
    if (failed || ended == Ended::normally || ended == Ended::context_closed) return;
    throw InvalidArgument(
        ended == Ended::with_inner
            ? "transaction: the block ended while an inner transaction was open; both were rolled "
              "back"
            : "transaction: an outer transaction ended before this one and rolled it back");
}

}  // namespace

void bind_transaction(py::module_& m) {
    py::class_<PyTransaction>(m, "Transaction",
                              "Calls that take effect together or not at all; see "
                              "plait.cache.transaction.Transaction.")
        .def("__init__", init(&make_transaction), py::detail::is_new_style_constructor(),
             py::arg("context"))
        .def("__enter__", &enter, py::return_value_policy::reference)
        .def("__exit__", &exit, py::arg("kind"), py::arg("error"), py::arg("trace"))
        .def_property_readonly(
            "open",
            [](const PyTransaction& self) {
                initialized(self.shared);
                return self.state == TransactionState::open;
            },
            "True inside the block, until rollback().")
        .def("rollback", &roll_back, R"(Undo all calls since the beginning of the block.

Ends the transaction: later calls of the block are not part of it.

Raises:
    ValueError: The transaction is not open, an inner one is open, another thread entered it, or
        the context is closed.)");
}

}  // namespace plait::python
