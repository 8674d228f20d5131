// The C++ context that the Python objects Context, KVCache and Stats share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gil_release.h"
#include "handles.h"
#include "module.h"
#include "objects.h"
#include "runtime/context.h"

namespace plait::python {

// Records that this thread is in a call of the context. An edit function, a signal handler or a log
// handler runs on the same thread in the middle of a call; a call of the same context from there
// would deadlock. Constructed and destroyed with the GIL.
class CallGuard {
public:
    // Throws InvalidArgument if this thread is already in a call of the context.
    explicit CallGuard(const Context& context);
    ~CallGuard();
    CallGuard(const CallGuard&) = delete;
    CallGuard& operator=(const CallGuard&) = delete;

    // Returns the outermost call of any context that this thread is in; null if it is in none.
    static CallGuard* outermost() noexcept;
    // Calls close() after this call, the outermost of its thread, and ignores exceptions.
    void defer(std::function<void()> close) { deferred_.push_back(std::move(close)); }

private:
    static bool is_in_call_of(const Context& context) noexcept;

    const Context* context_;
    CallGuard* outer_;
    std::vector<std::function<void()>> deferred_;
};

// Owned jointly by Context, KVCache and Stats, so that they can be destroyed in any order.
class SharedContext {
public:
    SharedContext(std::shared_ptr<const LoadedModel> model, const ContextOptions& options)
        : context_(std::move(model), options), handles_(this) {}

    // Returns f(context), called without the GIL: another thread may hold the context and wait for
    // the GIL.
    template <typename F>
    auto call(F&& f) {
        const CallGuard guard(context_);
        const GilRelease released;
        return std::forward<F>(f)(context_);
    }

    // Returns f(session), called with the lock of the context and without the GIL. Throws
    // InvalidArgument after close().
    template <typename F>
    auto session(F&& f) {
        return call(
            [&](Context& context) { return std::forward<F>(f)(*context.session().lock()); });
    }

    // As session(), for a call that names sequences. Throws InvalidArgument for a handle that is
    // closed or of another context, and for the bare id of an open handle if the call changes the
    // sequence.
    template <typename F>
    auto session_on(std::initializer_list<SequenceRef> sequences, F&& f) {
        return call_with_handles([&](Context& context, const Handles& handles) {
            for (const SequenceRef& sequence : sequences) handles.check(sequence);
            return std::forward<F>(f)(*context.session().lock());
        });
    }

    // Returns f(context, handles); no handle is opened or closed meanwhile.
    template <typename F>
    auto call_with_handles(F&& f) {
        return call([&](Context& context) {
            const std::shared_lock lock = handles_.lock_shared();
            return std::forward<F>(f)(context, std::as_const(handles_));
        });
    }

    // Calls f(context, handles) to open or close a handle, when no call that names sequences runs.
    template <typename F>
    void change_handles(F&& f) {
        call([&](Context& context) {
            const std::unique_lock lock = handles_.lock();
            std::forward<F>(f)(context, handles_);
        });
    }

    // For the destructor of a Python object that has something open: calls close(), which calls this
    // context, and ignores exceptions. Callbacks, and the garbage collector during one, destroy
    // objects while this thread is in a call, of this context or of another one whose lock it holds;
    // close() then runs after the outermost call, so it must own what it uses.
    template <typename F>
    void close_from_destructor(F&& close) noexcept {
        try {
            if (CallGuard* const call = CallGuard::outermost())
                call->defer(std::forward<F>(close));
            else
                std::forward<F>(close)();
        } catch (...) {
            // Without memory, what is open stays open until the context is destroyed.
        }
    }

    // Returns f(context, context of other), called without the GIL.
    template <typename F>
    auto call_with(SharedContext& other, F&& f) {
        const CallGuard other_guard(other.context_);
        return call([&](Context& context) { return std::forward<F>(f)(context, other.context_); });
    }

    // For reading settings that are fixed at construction, which needs no lock.
    const Context& fixed() const { return context_; }

    // Number of times that a state, a copy or a rollback has replaced the sequences.
    uint64_t n_replaced() const { return n_replaced_; }
    void note_replaced() { ++n_replaced_; }

private:
    Context context_;
    Handles handles_;
    std::atomic<uint64_t> n_replaced_{0};
};

// Base of the Python objects that share a context.
struct ContextUser : ZeroInitialized {
    std::shared_ptr<SharedContext> shared;  // null if __init__ was never called

    template <typename F>
    auto call(F&& f) const {
        return initialized(shared)->call(std::forward<F>(f));
    }
    template <typename F>
    auto session(F&& f) const {
        return initialized(shared)->session(std::forward<F>(f));
    }
};

struct PyContext : ContextUser {
    py::object model;
};

// Binds adapters, control vectors and edits.
void bind_steering(py::class_<PyContext>& context);
std::unique_ptr<RowFunction> make_row_function(py::handle function);
// Returns the elements of an array of real numbers. Throws TypeError for other objects.
std::vector<float> float_vector(const char* name, py::handle value);

void bind_transaction(py::module_& m);
// Binds captures, gradients, edits and traces.
void bind_scopes(py::module_& m);

}  // namespace plait::python
