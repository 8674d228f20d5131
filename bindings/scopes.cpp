// Captures, gradients, edits and traces: objects that open something and later close it.
//
// A Python signal handler can raise between any two bytecode instructions, including between
// opening something and recording that it is open. Here both happen in one call, so an interrupted
// `with` statement leaves the object either open and recorded, or not open. The destructor closes
// whatever is still open, for example after an allocation failure.
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "context.h"
#include "numpy.h"
#include "sequence.h"

namespace plait::python {
namespace {

using Any = py::object;  // an argument of __exit__
using RowsByName = py::typing::Dict<py::str, FloatRows>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Losses = py::typing::List<py::float_>;
using Traced = py::typing::Tuple<py::str, py::str, py::int_, py::int_, py::int_>;

std::shared_ptr<SharedContext> shared_of(const ContextObject& context) {
    if (!py::isinstance<PyContext>(context)) wrong_type("context", "a Context", context);
    return initialized(py::cast<const PyContext&>(context).shared);
}

// The turn of a thread to take recorded calls and to convert them. A conversion may run finalizers,
// and with them other threads, so those have to wait. They wait without the GIL.
class Turn {
public:
    explicit Turn(std::recursive_mutex& mutex) : lock_(mutex, std::try_to_lock) {
        if (lock_) return;
        const GilRelease released;
        lock_.lock();
    }

private:
    std::unique_lock<std::recursive_mutex> lock_;
};

// Base of the objects. Each has enter() and exit(), which threads call in turns; exit() is only called
// while the object is open.
struct Scope : ZeroInitialized {
    std::shared_ptr<SharedContext> shared;
    bool open = false;
    std::unique_ptr<std::recursive_mutex> mutex = std::make_unique<std::recursive_mutex>();
};

// Waits for the turn of this thread to enter or to exit. Throws InvalidArgument within a call of the
// context, whose end another thread may wait for.
Turn turn_outside_calls(const Scope& scope) {
    { const CallGuard is_outside(scope.shared->fixed()); }
    return Turn(*scope.mutex);
}

// Waits for the turn of this thread to read. An open scope cannot be read within a call.
Turn turn_of(const Scope& scope) {
    return scope.open ? turn_outside_calls(scope) : Turn(*scope.mutex);
}

struct PyCapture : Scope {
    PyCapture() = default;
    PyCapture(PyCapture&&) = default;
    PyCapture& operator=(PyCapture&&) = delete;
    ~PyCapture() {
        if (!shared || !open) return;
        shared->close_from_destructor(
            [shared = shared] { shared->call([](Context& c) { return c.stop_capture(); }); });
    }

    std::vector<std::string> names;
    std::deque<CapturedCall> taken;  // not yet converted to arrays
    py::object calls;                // a list, created on first use
};

PyCapture make_capture(const ContextObject& context, const py::typing::List<Text>& names) {
    PyCapture capture;
    capture.shared = shared_of(context);
    for (const py::handle name : names) capture.names.push_back(to_text("names", name));
    return capture;
}

RowsByName arrays(const std::vector<std::string>& names, CapturedCall& call) {
    py::dict result;
    for (size_t i = 0; i < call.size(); ++i) {
        const Shape& shape = call[i].shape;
        if (shape.rank == 0) continue;  // the call did not compute this value
        if (!call[i].patterns.empty()) {
            py::list rows;
            for (std::vector<float>& row : call[i].patterns) {
                const auto n_keys = static_cast<py::ssize_t>(row.size()) / shape[1];
                rows.append(take_vector(std::move(row), {shape[1], n_keys}));
            }
            result[py::str(names[i])] = rows;
            continue;
        }
        std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
        result[py::str(names[i])] = take_vector(std::move(call[i].values), std::move(sizes));
    }
    return result;
}

// Passes captured calls to a Python function. write() is called without the GIL.
class FunctionSink final : public CaptureSink {
public:
    explicit FunctionSink(py::object function) : function_(std::move(function)) {}
    ~FunctionSink() override {
        const py::gil_scoped_acquire locked;
        function_ = py::object();
    }
    FunctionSink(const FunctionSink&) = delete;
    FunctionSink& operator=(const FunctionSink&) = delete;

    void write(CapturedCall call) override {
        if (GilRelease::should_stop()) throw Interrupted();
        const py::gil_scoped_acquire locked;
        function_(arrays(names, call));
    }

    std::vector<std::string> names;

private:
    py::object function_;
};

void enter(PyCapture& self) {
    const py::object function =
        py::getattr(py::cast(self, py::return_value_policy::reference), "_sink", py::none());
    std::shared_ptr<FunctionSink> sink;
    if (!function.is_none()) sink = std::make_shared<FunctionSink>(function);
    // Nothing that allocates may follow start_capture() before `open` is set.
    std::vector<std::string> started =
        self.shared->session([names = self.names, &sink](Session& s) mutable {
            names = s.start_capture(names, sink);
            if (sink) sink->names.swap(names);
            return std::move(names);
        });
    self.open = true;
    self.taken.clear();
    self.calls = py::object();
    try {
        self.names = sink ? sink->names : std::move(started);
    } catch (...) {
        self.shared->call([](Context& c) { c.stop_capture(); });
        self.open = false;
        throw;
    }
}

void take(PyCapture& self, std::vector<CapturedCall> calls) {
    for (CapturedCall& call : calls) self.taken.push_back(std::move(call));
}

void exit(PyCapture& self) {
    // The sink is destroyed here, with the GIL.
    StoppedCapture stopped = self.shared->call([](Context& c) { return c.stop_capture(); });
    take(self, std::move(stopped.calls));
    self.open = false;
}

py::typing::List<RowsByName> calls(PyCapture& self) {
    initialized(self.shared);
    const Turn turn = turn_of(self);
    if (self.open) take(self, self.shared->call([](Context& c) { return c.take_captured(); }));
    if (!self.calls) self.calls = py::list();
    auto list = py::reinterpret_borrow<py::list>(self.calls);
    while (!self.taken.empty()) {
        CapturedCall call = std::move(self.taken.front());
        self.taken.pop_front();
        list.append(arrays(self.names, call));
    }
    return py::reinterpret_steal<py::list>(PySequence_List(list.ptr()));
}

// Calls a Python function of the logits, which returns (value, derivative). evaluate() is called
// without the GIL.
class FunctionLoss final : public Loss {
public:
    explicit FunctionLoss(py::object function) : function_(std::move(function)) {}
    ~FunctionLoss() override {
        const py::gil_scoped_acquire locked;
        function_ = py::object();
    }
    FunctionLoss(const FunctionLoss&) = delete;
    FunctionLoss& operator=(const FunctionLoss&) = delete;

    double evaluate(std::span<const float> logits, std::span<float> gradient,
                    int64_t rows) override {
        if (GilRelease::should_stop()) throw Interrupted();
        const py::gil_scoped_acquire locked;
        const py::ssize_t n_rows = rows;
        const auto n_vocab = static_cast<py::ssize_t>(logits.size()) / n_rows;
        const py::object result =
            function_(take_vector(std::vector(logits.begin(), logits.end()), {n_rows, n_vocab}));
        if (!py::isinstance<py::tuple>(result) || py::len(result) != 2)
            throw InvalidArgument(
                text("gradients: of: expected a function that returns (value, d_logits), it "
                     "returned ",
                     py::cast<std::string>(py::repr(py::type::of(result)))));
        const auto pair = py::reinterpret_borrow<py::tuple>(result);
        const auto derivative = Floats::ensure(pair[1]);
        if (!derivative) throw py::error_already_set();
        // Not with the shape of the array passed to the function, which may have changed it.
        if (derivative.ndim() != 2 || derivative.shape(0) != n_rows ||
            derivative.shape(1) != n_vocab)
            throw InvalidArgument(
                text("gradients: of: expected d_logits of the shape of the logits, (", n_rows, ", ",
                     n_vocab, "); the function returned the shape ", shape_text(derivative)));
        std::copy_n(derivative.data(), gradient.size(), gradient.data());
        return to_double("of: value", pair[0]);
    }

private:
    py::object function_;
};

struct PyGradients : Scope {
    PyGradients() = default;
    PyGradients(PyGradients&&) = default;
    PyGradients& operator=(PyGradients&&) = delete;
    ~PyGradients() {
        if (!shared || !open) return;
        shared->close_from_destructor(
            [shared = shared] { shared->call([](Context& c) { return c.stop_gradients(); }); });
    }
    void stop() {
        // The loss is destroyed after the call, with the GIL: this may be the last reference to it.
        auto [found, loss] = shared->call([](Context& c) { return c.stop_gradients(); });
        open = false;
        take(std::move(found));
    }
    void take(std::vector<GradientCall> found) {
        for (GradientCall& call : found) taken.push_back(std::move(call));
    }

    std::vector<std::string> names;
    std::deque<GradientCall> taken;  // not yet converted to arrays
    py::object calls, losses;        // lists, created on first use
};

PyGradients make_gradients(const ContextObject& context, const py::typing::List<Text>& names) {
    PyGradients gradients;
    gradients.shared = shared_of(context);
    for (const py::handle name : names) gradients.names.push_back(to_text("names", name));
    return gradients;
}

void enter(PyGradients& self) {
    const auto loss = std::make_shared<FunctionLoss>(
        py::cast(self, py::return_value_policy::reference).attr("_of"));
    self.names =
        self.shared->session([&](Session& s) { return s.start_gradients(self.names, loss); });
    self.taken.clear();
    self.calls = self.losses = py::object();
    self.open = true;
}

void exit(PyGradients& self) { self.stop(); }

// Converts the calls since the last use to Python objects.
void convert(PyGradients& self) {
    initialized(self.shared);
    const Turn turn = turn_of(self);
    if (self.open) self.take(self.shared->call([](Context& c) { return c.take_gradients(); }));
    if (!self.calls) {
        self.calls = py::list();
        self.losses = py::list();
    }
    while (!self.taken.empty()) {
        GradientCall call = std::move(self.taken.front());
        self.taken.pop_front();
        const RowsByName gradients = arrays(self.names, call.gradients);
        py::reinterpret_borrow<py::list>(self.calls).append(gradients);
        py::reinterpret_borrow<py::list>(self.losses).append(py::float_(call.loss));
    }
}

struct PyEdit : Scope {
    PyEdit() = default;
    PyEdit(PyEdit&&) = default;
    PyEdit& operator=(PyEdit&&) = delete;
    ~PyEdit() {
        if (!shared || !open) return;
        shared->close_from_destructor(
            [shared = shared, number = number] { stop(*shared, number); });
    }
    static void stop(SharedContext& shared, uint64_t number) {
        // Destroyed after the call, with the GIL: this may be the last reference to a function.
        const auto edit = shared.call([number](Context& c) { return c.stop_edit(number); });
    }

    std::string name;
    RowChange change = RowChange::add;
    std::optional<std::vector<SequenceRef>> sequences;  // nullopt: all
    std::function<RowSelection(std::optional<std::vector<SequenceId>>)> select;
    uint64_t number = 0;  // of the edit, while it is open
};

RowChange to_change(const Text& mode) {
    const std::string name = to_text("mode", mode);
    if (name == "add") return RowChange::add;
    if (name == "replace") return RowChange::replace;
    if (name == "scale") return RowChange::scale;
    throw InvalidArgument(
        text("edit: mode: expected \"add\", \"replace\" or \"scale\", got ", short_repr(mode)));
}

// Sets the positions: None, a range (begin, end or None, step), or an array.
void set_positions(PyEdit& edit, py::handle positions) {
    using Ids = std::optional<std::vector<SequenceId>>;
    if (positions.is_none()) {
        edit.select = [](Ids ids) { return RowSelection(std::move(ids), RowSelection::Range{}); };
    } else if (py::isinstance<py::tuple>(positions)) {
        const auto [begin, end, step] =
            py::cast<std::tuple<py::object, py::object, py::object>>(positions);
        RowSelection::Range range;
        range.begin = to_int32("positions", begin);
        if (!end.is_none()) range.end = to_int64("positions", end);
        range.step = to_int_between("positions", step, 1, INT32_MAX);
        edit.select = [range](Ids ids) { return RowSelection(std::move(ids), range); };
    } else {
        const Int32Array array = int32_array<InvalidArgument>("edit: positions", positions);
        std::vector<Position> listed(array.data(), array.data() + array.size());
        RowSelection(std::nullopt, listed);  // throws if a position is given twice
        edit.select = [listed = std::move(listed)](Ids ids) {
            return RowSelection(std::move(ids), listed);
        };
    }
}

// Throws InvalidArgument if a handle is closed or of another context, or an id does not exist.
void check_sequences(const PyEdit& edit) {
    if (!edit.sequences) return;
    const int32_t n = edit.shared->fixed().settings().n_seq_max();
    edit.shared->call_with_handles([&](Context&, const Handles& handles) {
        for (const SequenceRef& sequence : *edit.sequences) {
            handles.check(sequence);
            if (sequence.id < 0 || sequence.id >= n)
                throw InvalidArgument(text(sequence.argument, ": sequence ", sequence.id,
                                           " does not exist: expected 0 to ", n - 1));
        }
    });
}

PyEdit make_edit_scope(const ContextObject& context, const Text& name, const Text& mode,
                       const OptionalSequences& sequences, const OptionalArrayLike& positions) {
    PyEdit edit;
    edit.shared = shared_of(context);
    edit.name = to_text("name", name);
    edit.change = to_change(mode);
    if (!sequences.is_none()) {
        edit.sequences.emplace();
        for (const py::handle each : sequences)
            edit.sequences->push_back(sequence_ref("edit: seq", each, Access::read));
    }
    check_sequences(edit);
    set_positions(edit, positions);
    return edit;
}

// Returns the edit that the attribute `what` of the Python object defines.
std::shared_ptr<const ValueEdit> value_edit(const PyEdit& self, py::handle what) {
    auto edit = std::make_shared<ValueEdit>();
    std::optional<std::vector<SequenceId>> ids;
    if (self.sequences) {
        ids.emplace();
        for (const SequenceRef& sequence : *self.sequences) ids->push_back(sequence.id);
    }
    edit->selection = self.select(std::move(ids));
    edit->change = self.change;
    if (PyCallable_Check(what.ptr())) {
        edit->function = make_row_function(what);
        return edit;
    }
    edit->rows = float_vector("edit: what", what);
    const Shape row = self.shared->session([&](Session& s) { return s.value_shape(self.name); });
    edit->width = static_cast<size_t>(row.elements());
    edit->by_position = edit->rows.size() != edit->width;
    return edit;
}

void enter(PyEdit& self) {
    check_sequences(self);
    auto edit = value_edit(self, py::cast(self, py::return_value_policy::reference).attr("_what"));
    if (self.open)  // checked last: converting the array can run code that enters this edit
        throw InvalidArgument(
            text("edit: this edit of ", self.name, " is active; leave its `with` block first"));
    self.number = self.shared->session(
        [name = self.name, &edit](Session& s) { return s.start_edit(name, edit); });
    self.open = true;
}

void exit(PyEdit& self) {
    PyEdit::stop(*self.shared, self.number);
    self.open = false;
}

struct PyTrace : Scope {
    PyTrace() = default;
    PyTrace(PyTrace&&) = default;
    PyTrace& operator=(PyTrace&&) = delete;
    ~PyTrace() {
        if (!shared || !open) return;
        shared->close_from_destructor(
            [shared = shared] { shared->call([](Context& c) { c.take_trace(); }); });
    }

    std::optional<std::vector<TracedNode>> nodes;  // of the last trace, until taken() returns them
};

PyTrace make_trace(const ContextObject& context) {
    PyTrace trace;
    trace.shared = shared_of(context);
    return trace;
}

void enter(PyTrace& self) {
    self.shared->session([](Session& s) { s.start_trace(); });
    self.open = true;
}

void exit(PyTrace& self) {
    self.nodes = self.shared->call([](Context& c) { return c.take_trace(); });
    self.open = false;
}

py::typing::Optional<py::typing::List<Traced>> taken(PyTrace& self) {
    if (!self.nodes) return py::none();
    // Nothing shared: making tuples may run finalizers, and with them other threads.
    const std::vector<TracedNode> nodes = *std::exchange(self.nodes, std::nullopt);
    py::list result;
    for (const TracedNode& node : nodes)
        result.append(py::make_tuple(node.op, node.name, node.thread, node.begin_ns, node.end_ns));
    return result;
}

template <typename T>
T& enter_in_turn(T& self) {
    initialized(self.shared);
    const Turn turn = turn_outside_calls(self);
    enter(self);
    return self;
}

template <typename T>
void exit_in_turn(T& self, const Any&, const Any&, const Any&) {
    if (!self.open) return;
    const Turn turn = turn_outside_calls(self);
    if (self.open) exit(self);  // unless another thread has meanwhile
}

template <typename T>
py::class_<T> scope(py::module_& m, const char* name, const char* doc) {
    py::class_<T> result(m, name, doc);
    result.def("__enter__", &enter_in_turn<T>, py::return_value_policy::reference)
        .def("__exit__", &exit_in_turn<T>, py::arg("kind"), py::arg("error"), py::arg("trace"));
    return result;
}

void bind_gradients(py::module_& m) {
    scope<PyGradients>(
        m, "Gradients",
        "Computes the gradients of the function _of of the logits; see plait.inspect.gradients.")
        .def("__init__", init(&make_gradients), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("names"))
        .def_static(
            "known",
            [](const ContextObject& context) -> py::typing::List<py::str> {
                py::list names;
                for (const std::string& name :
                     shared_of(context)->session([](Session& s) { return s.gradient_names(); }))
                    names.append(py::str(name));
                return names;
            },
            py::arg("context"), "Return the names of the values that have a gradient.")
        .def_property_readonly(
            "names",
            [](const PyGradients& self) -> py::typing::List<py::str> {
                initialized(self.shared);
                py::list names;
                for (const std::string& name : self.names) names.append(py::str(name));
                return names;
            },
            "Names of the values.")
        .def_property_readonly(
            "losses",
            [](PyGradients& self) -> Losses {
                convert(self);
                return py::reinterpret_steal<Losses>(PySequence_List(self.losses.ptr()));
            },
            "Value of the loss in each call.")
        .def_property_readonly(
            "calls",
            [](PyGradients& self) -> py::typing::List<RowsByName> {
                convert(self);
                return py::reinterpret_steal<py::typing::List<RowsByName>>(
                    PySequence_List(self.calls.ptr()));
            },
            R"(The gradients of each call by name.

Each is a float32 ndarray of the shape of the value, (n_rows, ...), in batch order.)");
}

}  // namespace

void bind_scopes(py::module_& m) {
    scope<PyCapture>(m, "Capture",
                     "Records intermediate values of calls; see plait.inspect.capture.")
        .def("__init__", init(&make_capture), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("names"))
        .def_property_readonly(
            "names",
            [](const PyCapture& self) -> py::typing::List<py::str> {
                initialized(self.shared);
                py::list names;
                for (const std::string& name : self.names) names.append(py::str(name));
                return names;
            },
            "Names of the recorded values, in order of computation.")
        .def_property_readonly("calls", &calls,
                               R"(The recorded values of each call by name.

Each value is a float32 ndarray of shape (n_rows, ...). Values that a call did not compute are omitted.)");
    bind_gradients(m);
    scope<PyEdit>(
        m, "Edit",
        "Changes an intermediate value as its attribute _what defines; see plait.inspect.edit.")
        .def("__init__", init(&make_edit_scope), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("name"), py::arg("mode"), py::arg("sequences"),
             py::arg("positions"))
        .def_property_readonly(
            "number", [](const PyEdit& self) { return self.open ? self.number : 0; },
            "0 outside of a `with` block. Inside, larger than that of every edit opened earlier.")
        .def_property_readonly(
            "name",
            [](const PyEdit& self) {
                initialized(self.shared);
                return self.name;
            },
            "Name of the value.");
    scope<PyTrace>(m, "Trace",
                   "Records when each thread runs which operation; see plait.inspect.graph.")
        .def("__init__", init(&make_trace), py::detail::is_new_style_constructor(),
             py::arg("context"))
        .def("taken", &taken,
             R"(Return the events of the last `with` block once.

Returns:
    A list of (operation, name, thread, begin, end), with times in nanoseconds of a monotonic clock.
    None if the events were returned before.)");
}

}  // namespace plait::python
