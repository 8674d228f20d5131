// What is open for a while: captures, edits, traces, sequences that are held.
//
// Python raises what a signal handler raises between any two of its own instructions, also between
// the one that opens something and the one that notes it. Here both are one call, so whoever is
// interrupted finds it open and known, or not open: `with` calls __enter__ and __exit__ without an
// instruction in between. What nobody got to close, as where there was no memory for a call, is
// closed when its object dies.
#include <optional>

#include "context.h"
#include "numpy.h"

namespace plait::python {
namespace {

using Any = py::object;  // of an exception, as `with` gives it
using RowsByName = py::typing::Dict<py::str, FloatRows>;
using Traced = py::typing::Tuple<py::str, py::str, py::int_, py::int_, py::int_>;

std::shared_ptr<SharedContext> shared_of(const ContextObject& context) {
    if (!py::isinstance<PyContext>(context)) wrong_type("context", "a Context", context);
    return made(py::cast<const PyContext&>(context).shared);
}

// In the middle of a call of the context, from a handler, nothing can be closed.
template <typename F>
void close_quietly(F&& close) noexcept {
    try {
        close();
    } catch (...) {
    }
}

struct PyCapture : Zeroed {
    PyCapture() = default;
    PyCapture(PyCapture&&) = default;
    PyCapture& operator=(PyCapture&&) = delete;
    ~PyCapture() {
        if (shared && open)
            close_quietly([this] { shared->call([](Context& c) { c.stop_capture(); }); });
    }

    std::shared_ptr<SharedContext> shared;
    std::vector<std::string> names;
    bool open = false;
    std::vector<CapturedCall> taken;  // no arrays yet
    py::object calls;                 // a list, once there are some
};

PyCapture make_capture(const ContextObject& context, const py::typing::List<Text>& names) {
    PyCapture capture;
    capture.shared = shared_of(context);
    for (const py::handle name : names) capture.names.push_back(to_text("names", name));
    return capture;
}

PyCapture& enter(PyCapture& self) {
    self.names = made(self.shared)->call([names = self.names](Context& c) {
        return c.start_capture(names);
    });
    self.taken.clear();
    self.calls = py::object();
    self.open = true;
    return self;
}

void take(PyCapture& self, std::vector<CapturedCall> calls) {
    for (CapturedCall& call : calls) self.taken.push_back(std::move(call));
}

void exit(PyCapture& self, const Any&, const Any&, const Any&) {
    if (!self.open) return;
    take(self, self.shared->call([](Context& c) { return c.stop_capture(); }));
    self.open = false;
}

RowsByName arrays(const std::vector<std::string>& names, CapturedCall& call) {
    py::dict result;
    for (size_t i = 0; i < call.size(); ++i) {
        const Shape& shape = call[i].shape;
        if (shape.rank == 0) continue;  // this call computed no such value
        std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
        result[py::str(names[i])] = take_vector(std::move(call[i].values), std::move(sizes));
    }
    return result;
}

py::typing::List<RowsByName> calls(PyCapture& self) {
    made(self.shared);
    if (self.open) take(self, self.shared->call([](Context& c) { return c.take_captured(); }));
    if (!self.calls) self.calls = py::list();
    auto list = py::reinterpret_borrow<py::list>(self.calls);
    for (CapturedCall& call : self.taken) list.append(arrays(self.names, call));
    self.taken.clear();
    return py::reinterpret_steal<py::list>(PySequence_List(list.ptr()));
}

struct PyEdit : Zeroed {
    PyEdit() = default;
    PyEdit(PyEdit&&) = default;
    PyEdit& operator=(PyEdit&&) = delete;
    ~PyEdit() {
        if (shared && number != 0) close_quietly([this] { stop(); });
    }
    void stop() {
        // Its function may be the last of its kind, and dies with the GIL.
        const auto edit = shared->call([n = number](Context& c) { return c.stop_edit(n); });
        number = 0;
    }

    std::shared_ptr<SharedContext> shared;
    std::string name;
    bool adds = false;
    uint64_t number = 0;  // of what was started; none is 0
};

PyEdit make_edit_scope(const ContextObject& context, const Text& name, const Flag& adds) {
    PyEdit edit;
    edit.shared = shared_of(context);
    edit.name = to_text("name", name);
    edit.adds = to_bool("adds", adds);
    return edit;
}

PyEdit& enter(PyEdit& self) {
    made(self.shared);
    if (self.number != 0)
        throw InvalidArgument(text("edit: ", self.name, " is being edited by this already"));
    auto edit =
        make_edit(py::cast(self, py::return_value_policy::reference).attr("_what"), self.adds);
    self.number = self.shared->call(
        [name = self.name, &edit](Context& c) { return c.start_edit(name, edit); });
    return self;
}

void exit(PyEdit& self, const Any&, const Any&, const Any&) {
    if (self.number != 0) self.stop();
}

struct PyTrace : Zeroed {
    PyTrace() = default;
    PyTrace(PyTrace&&) = default;
    PyTrace& operator=(PyTrace&&) = delete;
    ~PyTrace() {
        if (shared && open)
            close_quietly([this] { shared->call([](Context& c) { c.take_trace(); }); });
    }

    std::shared_ptr<SharedContext> shared;
    bool open = false;
    std::optional<std::vector<TracedNode>> nodes;  // of what ended last, until they are asked for
};

PyTrace make_trace(const ContextObject& context) {
    PyTrace trace;
    trace.shared = shared_of(context);
    return trace;
}

PyTrace& enter(PyTrace& self) {
    made(self.shared)->call([](Context& c) { c.start_trace(); });
    self.open = true;
    return self;
}

void exit(PyTrace& self, const Any&, const Any&, const Any&) {
    self.nodes = made(self.shared)->call([](Context& c) { return c.take_trace(); });
    self.open = false;
}

py::typing::Optional<py::typing::List<Traced>> taken(PyTrace& self) {
    if (!self.nodes) return py::none();
    py::list result;
    for (const TracedNode& node : *self.nodes)
        result.append(py::make_tuple(node.op, node.name, node.thread, node.begin_ns, node.end_ns));
    self.nodes.reset();
    return result;
}

// A sequence id that is this object's alone.
class PyHeld {
public:
    PyHeld() = default;
    PyHeld(PyHeld&&) = default;
    PyHeld& operator=(PyHeld&&) = delete;
    ~PyHeld() {
        close_quietly([this] { close(); });
    }
    void open(const std::shared_ptr<SharedContext>& shared) {
        id_ = shared->call([](Context& c) { return c.open_sequence(); });
        shared_ = shared;
    }
    void close() {
        auto shared = std::exchange(shared_, nullptr);  // no other thread closes it again meanwhile
        if (!shared) return;
        try {
            shared->call([this](Context& c) { c.close_sequence(id_); });
        } catch (...) {
            shared_ = std::move(shared);
            throw;
        }
    }
    SequenceId id() const { return id_; }

private:
    SequenceId id_ = 0;
    std::shared_ptr<SharedContext> shared_;  // null once closed
};

// The object comes first: once the id is taken nothing may fail.
HeldSequence open_sequence(const PyContext& self) {
    HeldSequence held = py::cast(PyHeld());
    py::cast<PyHeld&>(held).open(made(self.shared));
    return held;
}

template <typename T>
py::class_<T> scope(py::module_& m, const char* name, const char* doc) {
    py::class_<T> made_class(m, name, doc);
    made_class.def("__enter__", static_cast<T& (*)(T&)>(&enter), py::return_value_policy::reference)
        .def("__exit__", static_cast<void (*)(T&, const Any&, const Any&, const Any&)>(&exit),
             py::arg("kind"), py::arg("error"), py::arg("trace"));
    return made_class;
}

}  // namespace

void bind_scopes(py::module_& m, py::class_<PyContext>& context) {
    scope<PyCapture>(m, "Capture",
                     "What records values between input and output; see plait.capture.")
        .def("__init__", init(&make_capture), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("names"))
        .def_property_readonly(
            "names",
            [](const PyCapture& self) -> py::typing::List<py::str> {
                made(self.shared);
                py::list names;
                for (const std::string& name : self.names) names.append(py::str(name));
                return names;
            },
            "Names of the values that it records, in the order in which they are computed.")
        .def_property_readonly("calls", &calls,
                               "For each call, its values by name, float32 (n_rows, ...); those "
                               "that it did not compute "
                               "are left out.");
    scope<PyEdit>(m, "Edit",
                  "What changes a value to what its attribute _what says; see plait.edit.")
        .def("__init__", init(&make_edit_scope), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("name"), py::arg("adds"))
        .def_property_readonly(
            "name",
            [](const PyEdit& self) {
                made(self.shared);
                return self.name;
            },
            "The value's name.");
    scope<PyTrace>(m, "Trace", "What notes which thread runs what when; see plait.graph.")
        .def("__init__", init(&make_trace), py::detail::is_new_style_constructor(),
             py::arg("context"))
        .def("taken", &taken,
             "(operation, name, thread, begin, end) of what ran in the `with` that ended last, in "
             "nanoseconds of one clock; None where it was asked before.");
    py::class_<PyHeld>(m, "HeldSequence", only_ours(),
                       "A sequence id that nobody else is given until it is closed, or gone.")
        .def_property_readonly("id", &PyHeld::id, "The id, also when closed.")
        .def("close", &PyHeld::close,
             "Free its cells and give the id back. Harmless when closed already.");
    context.def("open_sequence", &open_sequence,
                R"(Reserve a sequence id that holds nothing; what `sequence()` stands on.

Raises CacheFull when none is left.)");
}

}  // namespace plait::python
