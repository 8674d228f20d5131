// The Python class Transaction: calls of a context that take effect together or not at all.
#include <atomic>
#include <thread>

#include "context.h"
#include "convert.h"

namespace plait::python {
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
                session->roll_back_transaction(
                    [&](SequenceId id) { return handles.is_owned(id); });
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
        throw InvalidArgument("transaction: this one was entered before; call ctx.transaction()");
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
        throw InvalidArgument(text("transaction: ", call, " was called in another thread than the ",
                                   "one that entered the transaction"));
}

void roll_back(PyTransaction& self) {
    const std::shared_ptr<SharedContext>& shared = initialized(self.shared);
    if (self.state == TransactionState::created)
        throw InvalidArgument("transaction: rollback() before the transaction was entered");
    if (self.state == TransactionState::rolled_back)
        throw InvalidArgument("transaction: rollback() was called before");
    if (self.state == TransactionState::ended)
        throw InvalidArgument("transaction: rollback() after the transaction has ended");
    check_thread(self, "rollback()");
    const bool has_inner = shared->call_with_handles([&](Context& context, const Handles& handles) {
        context.session().lock();  // throws if the context is closed
        return handles.in_transaction(self.number) && handles.innermost() != self.number;
    });
    if (has_inner)
        throw InvalidArgument(
            "transaction: rollback() while an inner transaction is open; end that one first");
    const Ended ended = end_all(*shared, self.number, End::roll_back);
    self.state = TransactionState::rolled_back;
    if (ended == Ended::before)
        throw InvalidArgument(
            "transaction: rollback() after the end of an outer transaction, which has rolled back "
            "this one");
}

void exit(PyTransaction& self, const Any& kind, const Any&, const Any&) {
    if (self.state == TransactionState::created)
        throw InvalidArgument("transaction: the end of a block that was never entered");
    if (self.state != TransactionState::open) return;
    check_thread(self, "__exit__()");
    const bool failed = !kind.is_none();
    const Ended ended = end_all(*self.shared, self.number, failed ? End::roll_back : End::commit);
    self.state = TransactionState::ended;
    if (failed || ended == Ended::normally || ended == Ended::context_closed) return;
    throw InvalidArgument(
        ended == Ended::with_inner
            ? "transaction: the block ended while a transaction inside of it was open; both were "
              "rolled back"
            : "transaction: an outer transaction has ended before this one and rolled it back");
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
    ValueError: The transaction is not open, an inner one is, it was entered in another thread, or
        the context is closed.)");
}

}  // namespace plait::python
