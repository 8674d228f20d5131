// A context as Python's objects share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "made.h"
#include "module.h"
#include "runtime/context.h"
#include "unlocked.h"

namespace plait::python {

// Marks what a thread is inside of. A signal handler or a log handler runs in the middle of a call,
// on the same thread; calling the same context from there would wait for itself for ever.
class Inside {
public:
    explicit Inside(const Context& context);  // InvalidArgument when the thread is inside already
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

private:
    const Context* context_;
    Inside* outer_;
};

// Held by the Context, its KVCache and its Stats, so that each is safe to use whichever dies first.
class SharedContext {
public:
    SharedContext(std::shared_ptr<const LoadedModel> model, const ContextOptions& options)
        : context_(std::move(model), options), devices_(context_.devices()) {}

    // f(context) without the GIL: the context may be busy in another thread that waits for the GIL.
    template <typename F>
    auto call(F&& f) {
        const Inside inside(context_);
        const Unlocked unlocked;
        return std::forward<F>(f)(context_);
    }

    // f(context, other's context), likewise.
    template <typename F>
    auto call_with(SharedContext& other, F&& f) {
        const Inside inside_other(other.context_);
        return call([&](Context& context) { return std::forward<F>(f)(context, other.context_); });
    }

    // What was fixed at creation; needs no lock.
    const Context& fixed() const { return context_; }
    // Those that compute something; once closed, those that did.
    std::vector<std::string> devices();

    Stats stats();
    void reset_stats();
    void close();  // the statistics stay

private:
    Context context_;
    std::vector<std::string> devices_;  // guarded by the GIL
    std::optional<Stats> last_stats_;   // once closed; guarded by the GIL
};

struct PyContext : Zeroed {
    std::shared_ptr<SharedContext> shared;  // null in one that was never initialised
    py::object model;

    template <typename F>
    auto call(F&& f) const {
        return made(shared)->call(std::forward<F>(f));
    }
};

// What is added to the model, and what is made of its values.
void bind_steering(py::class_<PyContext>& context);
// `what`: a function of the value's rows, or one row for all.
std::shared_ptr<ValueEdit> make_edit(py::handle what, bool adds);

// What is open for a while: captures, edits, traces, sequences that are held.
void bind_scopes(py::module_& m, py::class_<PyContext>& context);

}  // namespace plait::python
