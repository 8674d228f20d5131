// Gradients of a scalar of the logits: an object that starts and stops them, as in scopes.cpp.
#include "gil_release.h"
#include "numpy.h"
#include "scope.h"

namespace plait::python {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Losses = py::typing::List<py::float_>;

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
        const py::array_t<float> given =
            take_vector(std::vector(logits.begin(), logits.end()),
                        {n_rows, static_cast<py::ssize_t>(logits.size()) / n_rows});
        const py::object result = function_(given);
        if (!py::isinstance<py::tuple>(result) || py::len(result) != 2)
            throw InvalidArgument(
                text("gradients: of: expected a function that returns (value, d_logits), it "
                     "returned ",
                     py::cast<std::string>(py::repr(py::type::of(result)))));
        const auto pair = py::reinterpret_borrow<py::tuple>(result);
        const auto derivative = Floats::ensure(pair[1]);
        if (!derivative) throw py::error_already_set();
        if (derivative.ndim() != 2 || derivative.shape(0) != given.shape(0) ||
            derivative.shape(1) != given.shape(1))
            throw InvalidArgument(text("gradients: of: expected d_logits of the shape of the "
                                       "logits, ",
                                       shape_text(given), "; the function returned the shape ",
                                       shape_text(derivative)));
        std::copy_n(derivative.data(), gradient.size(), gradient.data());
        return to_double("of: value", pair[0]);
    }

private:
    py::object function_;
};

struct PyGradients : ZeroInitialized {
    PyGradients() = default;
    PyGradients(PyGradients&&) = default;
    PyGradients& operator=(PyGradients&&) = delete;
    ~PyGradients() {
        if (shared && open)
            close_noexcept([this] { stop(); });
    }
    void stop() {
        // The loss is destroyed after the call, with the GIL: this may be the last reference to it.
        auto [calls, loss] = shared->call([](Context& c) { return c.stop_gradients(); });
        open = false;
        take(std::move(calls));
    }
    void take(std::vector<GradientCall> calls) {
        for (GradientCall& call : calls) taken.push_back(std::move(call));
    }

    std::shared_ptr<SharedContext> shared;
    std::vector<std::string> names;
    bool open = false;
    std::vector<GradientCall> taken;  // not yet converted to arrays
    py::object calls, losses;         // lists, created on first use
};

PyGradients make_gradients(const ContextObject& context, const py::typing::List<Text>& names) {
    PyGradients gradients;
    gradients.shared = shared_of(context);
    for (const py::handle name : names) gradients.names.push_back(to_text("names", name));
    return gradients;
}

PyGradients& enter(PyGradients& self) {
    initialized(self.shared);
    const auto loss = std::make_shared<FunctionLoss>(
        py::cast(self, py::return_value_policy::reference).attr("_of"));
    self.names = self.shared->session(
        [&](Session& s) { return s.start_gradients(self.names, loss); });
    self.taken.clear();
    self.calls = self.losses = py::object();
    self.open = true;
    return self;
}

void exit(PyGradients& self, const Any&, const Any&, const Any&) {
    if (self.open) self.stop();
}

// Converts the calls since the last use to Python objects.
void convert(PyGradients& self) {
    initialized(self.shared);
    if (self.open) self.take(self.shared->call([](Context& c) { return c.take_gradients(); }));
    if (!self.calls) {
        self.calls = py::list();
        self.losses = py::list();
    }
    for (GradientCall& call : self.taken) {
        py::reinterpret_borrow<py::list>(self.calls)
            .append(arrays_by_name(self.names, call.gradients));
        py::reinterpret_borrow<py::list>(self.losses).append(py::float_(call.loss));
    }
    self.taken.clear();
}

}  // namespace

void bind_gradients(py::module_& m) {
    scope<PyGradients>(
        m, "Gradients",
        "Computes the gradients of the function _of of the logits; see plait.inspect.gradients.")
        .def("__init__", init(&make_gradients), py::detail::is_new_style_constructor(),
             py::arg("context"), py::arg("names"))
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

}  // namespace plait::python
