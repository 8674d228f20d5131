// The Python class Transaction: calls of a context that take effect together or not at all.
//
// A class of the C API, not of pybind11, which looks up classes and objects in tables. After a step
// these tables have left the processor's caches, and a transaction around the step would cost twice
// as much (docs/decisions/0052).
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "context.h"
#include "convert.h"

namespace plait::python {
namespace {

enum class TransactionState { created, entering, open, rolled_back, ended };
enum class End { commit, roll_back };
enum class Ended { normally, with_inner, before, context_closed };

// Ends the transaction and the transactions inside of it, which are rolled back with it. Does
// nothing if it has ended already.
Ended end_transaction(SharedContext& shared, uint64_t number, End how) {
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

class Transaction {
public:
    explicit Transaction(std::shared_ptr<SharedContext> shared) : shared_(std::move(shared)) {}
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    ~Transaction();

    bool is_open() const { return state_ == TransactionState::open; }
    bool was_entered() const { return state_ > TransactionState::entering; }
    void enter();
    void exit(bool failed);
    void roll_back();

private:
    void check_thread(const char* call) const;

    std::shared_ptr<SharedContext> shared_;
    uint64_t number_ = 0;
    std::atomic<TransactionState> state_{TransactionState::created};
    std::thread::id thread_;
};

Transaction::~Transaction() {
    if (!is_open()) return;
    shared_->close_from_destructor(
        [shared = shared_, number = number_] { end_transaction(*shared, number, End::roll_back); });
}

void Transaction::enter() {
    static std::atomic<uint64_t> n_transactions{0};
    auto expected = TransactionState::created;
    if (!state_.compare_exchange_strong(expected, TransactionState::entering))
        throw InvalidArgument(
            "transaction: this one was entered before; call ctx.transaction() for a new one");
    number_ = ++n_transactions;
    thread_ = std::this_thread::get_id();
    try {
        shared_->change_handles([&](Context& context, Handles& handles) {
            const auto session = context.session().lock();
            handles.begin_transaction(number_);
            try {
                session->begin_transaction();
            } catch (...) {
                handles.commit_transaction();
                throw;
            }
        });
    } catch (...) {
        state_ = TransactionState::created;
        throw;
    }
    state_ = TransactionState::open;
}

void Transaction::exit(bool failed) {
    if (!was_entered())
        throw InvalidArgument("transaction: __exit__() was called before __enter__()");
    if (!is_open()) return;
    check_thread("__exit__()");
    const Ended ended = end_transaction(*shared_, number_, failed ? End::roll_back : End::commit);
    state_ = TransactionState::ended;
    if (failed || ended == Ended::normally || ended == Ended::context_closed) return;
    throw InvalidArgument(
        ended == Ended::with_inner
            ? "transaction: the block ended while an inner transaction was open; both were rolled "
              "back"
            : "transaction: an outer transaction ended before this one and rolled it back");
}

void Transaction::roll_back() {
    if (!was_entered())
        throw InvalidArgument(
            "transaction: rollback() was called before the transaction was entered");
    if (state_ == TransactionState::rolled_back)
        throw InvalidArgument("transaction: rollback() was already called");
    if (state_ == TransactionState::ended)
        throw InvalidArgument("transaction: rollback() was called after the transaction had ended");
    check_thread("rollback()");
    const bool has_inner =
        shared_->call_with_handles([&](Context& context, const Handles& handles) {
            context.session().lock();  // throws if the context is closed
            return handles.in_transaction(number_) && handles.innermost() != number_;
        });
    if (has_inner)
        throw InvalidArgument(
            "transaction: rollback() was called while an inner transaction is open; end that one "
            "first");
    const Ended ended = end_transaction(*shared_, number_, End::roll_back);
    state_ = TransactionState::rolled_back;
    if (ended == Ended::before)
        throw InvalidArgument(
            "transaction: rollback() was called after the end of an outer transaction, which had "
            "already rolled this one back");
}

void Transaction::check_thread(const char* call) const {
    if (thread_ != std::this_thread::get_id())
        throw InvalidArgument(text("transaction: ", call, " was called in a thread that did not ",
                                   "enter the transaction"));
}

// The Python object.
struct Object {
    PyObject base;
    Transaction transaction;
};

PyTypeObject* g_type = nullptr;

Transaction& transaction_of(PyObject* self) { return reinterpret_cast<Object*>(self)->transaction; }

// Returns f(); null with a Python error set if it throws.
template <typename F>
PyObject* translated(F&& f) {
    try {
        return f().release().ptr();
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (...) {
        py::detail::try_translate_exceptions();
    }
    return nullptr;
}

// The value of an object of Context, whose type was checked by Python; null without __init__.
const PyContext* context_of(PyObject* context) {
    auto* const instance = reinterpret_cast<py::detail::instance*>(context);
    // An object of several bound classes needs a look-up.
    if (!instance->simple_layout) return &py::handle(context).cast<const PyContext&>();
    return instance->get_value_and_holder().value_ptr<PyContext>();
}

// Context.transaction().
PyObject* create(PyObject* context, PyObject*) {
    return translated([context] {
        const std::shared_ptr<SharedContext>& shared =
            initialized(initialized(context_of(context))->shared);
        auto self = py::reinterpret_steal<py::object>(g_type->tp_alloc(g_type, 0));
        if (!self) throw py::error_already_set();
        new (&transaction_of(self.ptr())) Transaction(shared);
        return self;
    });
}

void destroy(PyObject* self) {
    const py::error_scope kept;  // a rollback may call a log handler
    transaction_of(self).~Transaction();
    g_type->tp_free(self);
    Py_DECREF(g_type);
}

PyObject* enter(PyObject* self, PyObject*) {
    return translated([self] {
        transaction_of(self).enter();
        return py::reinterpret_borrow<py::object>(self);
    });
}

PyObject* exit(PyObject* self, PyObject* const* args, Py_ssize_t n) {
    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "Transaction.__exit__(): takes 3 arguments, got %zd",
                            n);
    return translated([&] {
        transaction_of(self).exit(args[0] != Py_None);
        return py::none();
    });
}

PyObject* roll_back(PyObject* self, PyObject*) {
    return translated([self] {
        transaction_of(self).roll_back();
        return py::none();
    });
}

// Docstrings begin with the signature for inspect.signature() and that for the stub, as those of
// bound functions do; see signatures.cpp.
PyMethodDef g_methods[] = {
    {"__enter__", &enter, METH_NOARGS, "__enter__(self)\n--\n\n__enter__(self) -> Transaction"},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&exit)), METH_FASTCALL,
     "__exit__(self, kind, error, trace, /)\n--\n\n"
     "__exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any, /) -> None"},
    {"rollback", &roll_back, METH_NOARGS, R"(rollback(self)
--

rollback(self) -> None

Undo all calls since the beginning of the block.

Ends the transaction: later calls of the block are not part of it.

Raises:
    ValueError: The transaction is not open, an inner one is open, another thread entered it, or
        the context is closed.)"},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef g_create = {"transaction", &create, METH_NOARGS, R"(transaction(self)
--

transaction(self) -> Transaction

Make the calls of a `with` block take effect together or not at all.

The block contains any number of calls that change the cache: decode(), encode(), the methods of
`kv`, of sequences and of `sequence()`. An exception that leaves the block, or `rollback()`, undoes
them: sequences, their handles, cells and pending shifts are as at the beginning. Transactions nest,
and ending an inner one normally makes its calls part of the outer one. Outputs, statistics,
captures, edits, adapters and control vectors are not part of a transaction.

No cell is copied in advance. A cell that the block may restore stays in memory until its end and
counts as used, so a call can raise CacheFull earlier than without the transaction; cells whose
contents or positions change are copied first. Cells with a pending shift are copied by the next
decode() of any sequence, and by keys(), values(), write(), to_bytes(), save() and copy_to(). Recurrent
layers have room for the states of one transaction over all n_seq_max sequences. The cache is not
defragmented meanwhile.

A handle opened in a block that is undone is closed; one closed in it is open again, with its
adapters and its control vector, unless its object was deleted. Calls of other threads are part of
the block too.

Returns:
    A context manager, of which `rollback()` undoes the block.

Raises:
    ValueError: The context is closed. Raised by the end of the block: it ends in another thread, or
        a transaction inside of it is still open, and both were undone.

Example:
    with ctx.transaction() as tx:
        out = ctx.decode(batch)
        if out.logits[0].argmax() != token:
            tx.rollback())"};

// Throws the Python error that is set if the reference is null.
py::object checked(PyObject* reference) {
    auto object = py::reinterpret_steal<py::object>(reference);
    if (!object) throw py::error_already_set();
    return object;
}

}  // namespace

void bind_transaction(py::module_& m) {
    PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("A `with` block of calls that can be undone, returned by "
                                      "`Context.transaction()`.")},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_methods, g_methods},
        {0, nullptr},
    };
    PyType_Spec spec = {"plait._core.Transaction", sizeof(Object), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    const py::object type = checked(PyType_FromSpec(&spec));
    const py::cpp_function is_open([](const py::object& self) {
        if (Py_TYPE(self.ptr()) != g_type) wrong_type("self", "a Transaction", self);
        return transaction_of(self.ptr()).is_open();
    });
    const py::handle property(reinterpret_cast<PyObject*>(&PyProperty_Type));
    type.attr("open") =
        property(is_open, py::none(), py::none(), "True inside the block, until rollback().");
    m.attr("Transaction") = type;
    const auto context = py::type::of<PyContext>();
    context.attr("transaction") =
        checked(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(context.ptr()), &g_create));
    g_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
}

}  // namespace plait::python
