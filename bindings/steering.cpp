// Context: adapters, control vectors, edits.
#include "context.h"
#include "model.h"
#include "numpy.h"

namespace plait::python {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

Floats float_array(const char* name, py::handle value) {
    const auto array = py::array::ensure(value);
    if (!array || (array.dtype().kind() != 'f' && array.dtype().kind() != 'i' &&
                   array.dtype().kind() != 'u')) {
        PyErr_Clear();
        wrong_type(name, "an array of real numbers", value);
    }
    auto floats = Floats::ensure(array);
    if (!floats) throw py::error_already_set();
    return floats;
}

void set_lora(const PyContext& self, const AdapterScales& adapters) {
    std::vector<ScaledAdapter> scaled;
    if (!adapters.is_none()) {
        if (!py::hasattr(adapters, "items"))
            wrong_type("adapters", "a dict of adapters and their scales, or None", adapters);
        for (const py::handle item : adapters.attr("items")()) {
            const auto [adapter, scale] = py::cast<std::pair<py::object, py::object>>(item);
            if (!py::isinstance<PyAdapter>(adapter)) wrong_type("adapters", "an Adapter", adapter);
            scaled.push_back({py::cast<const PyAdapter&>(adapter).adapter,
                              static_cast<float>(to_double("scale", scale))});
        }
    }
    self.call([&](Context& c) { c.set_lora(std::move(scaled)); });
}

void set_control_vector(const PyContext& self, const OptionalArrayLike& vector,
                        const Integer& first_layer, const OptionalInteger& last_layer) {
    const int64_t first = to_int64("first_layer", first_layer);
    std::optional<int64_t> last;
    if (!last_layer.is_none()) last = to_int64("last_layer", last_layer);
    if (vector.is_none())
        return self.call([&](Context& c) { c.set_control_vector({}, 0, first, last); });
    const Floats rows = float_array("vector", vector);
    if (rows.ndim() != 2 || rows.size() == 0)
        throw InvalidArgument(text("vector: expected (n_layer, n_embd), got ", shape_text(rows)));
    const std::span values(rows.data(), static_cast<size_t>(rows.size()));
    const auto n = static_cast<int64_t>(rows.shape(0));
    self.call([&](Context& c) { c.set_control_vector(values, n, first, last); });
}

// The same row for every token: added, or in the value's place.
class RowEdit final : public ValueEdit {
public:
    RowEdit(std::vector<float> row, bool adds) : row_(std::move(row)), adds_(adds) {}
    void apply(std::span<float> rows, const Shape& shape) override {
        if (rows.size() != row_.size() * static_cast<size_t>(shape[0]))
            throw InvalidArgument(text("edit: expected a row of ",
                                       rows.size() / static_cast<size_t>(shape[0]),
                                       " numbers, got ", row_.size()));
        for (size_t i = 0; i < rows.size(); ++i) {
            const float x = row_[i % row_.size()];
            rows[i] = adds_ ? rows[i] + x : x;
        }
    }

private:
    std::vector<float> row_;
    bool adds_;
};

// Whatever a Python function returns. Called without the GIL, from inside a decode.
class FunctionEdit final : public ValueEdit {
public:
    explicit FunctionEdit(py::object function) : function_(std::move(function)) {}
    ~FunctionEdit() override {
        const py::gil_scoped_acquire locked;
        function_ = py::object();
    }
    FunctionEdit(const FunctionEdit&) = delete;
    FunctionEdit& operator=(const FunctionEdit&) = delete;

    void apply(std::span<float> rows, const Shape& shape) override {
        if (Unlocked::should_stop()) throw Interrupted();
        const py::gil_scoped_acquire locked;
        const std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
        const py::array_t<float> given = take_vector(std::vector(rows.begin(), rows.end()), sizes);
        const Floats made = float_array("edit", function_(given));
        if (std::vector(made.shape(), made.shape() + made.ndim()) != sizes)
            throw InvalidArgument(text("edit: expected an array ", shape_text(given),
                                       ", the function returned ", shape_text(made)));
        std::copy_n(made.data(), rows.size(), rows.data());
    }

private:
    py::object function_;
};

py::typing::Tuple<py::int_, py::ellipsis> value_shape(const PyContext& self, const Text& name) {
    const std::string value = to_text("name", name);
    const Shape shape = self.call([&](Context& c) { return c.value_shape(value); });
    py::tuple sizes(shape.rank);
    for (uint8_t i = 0; i < shape.rank; ++i) sizes[i] = shape.dims[i];
    return sizes;
}

}  // namespace

std::shared_ptr<ValueEdit> make_edit(py::handle what, bool adds) {
    if (PyCallable_Check(what.ptr()))
        return std::make_shared<FunctionEdit>(py::reinterpret_borrow<py::object>(what));
    const Floats row = float_array("edit", what);
    return std::make_shared<RowEdit>(std::vector(row.data(), row.data() + row.size()), adds);
}

void bind_steering(py::class_<PyContext>& context) {
    context
        .def("set_lora", &set_lora, py::arg("adapters"),
             R"(Add adapters to the model in every later call: y = W x + sum of scale * B A x.

In place of those before; {} or None removes them. Changing scales alone builds no plan, nor does
going back to a set that was active before. What is cached stays as it was computed.

Parameters
----------
adapters : dict of Adapter to float, or None
    From `Model.load_lora` of this context's model, with a scale each. Several are summed in the
    order in which they were loaded.

Raises
------
ValueError
    An adapter of another model; a scale that is not finite.
UnsupportedError
    An adapter of a weight that this model does not multiply by.

Source: cpp/graph/low_rank.cpp)")
        .def("set_control_vector", &set_control_vector, py::arg("vector"),
             py::arg("first_layer") = 1, py::arg("last_layer") = py::none(),
             R"(Add a vector to the output of every layer in every later call (arXiv:2310.01405).

What is cached stays as it was computed. Another vector of these layers builds no plan.

Parameters
----------
vector : array-like of float32, (n_layer, n_embd), or None
    Row i is added to what layer i gives, blk.i.l_out; rows may be missing at the end. None removes
    the vector. Of a model with an encoder it is the decoder's layers.
first_layer, last_layer : int
    The first and the last layer that it is added to. None: the model's last. Layer 0 is left out
    unless asked for, as in llama.cpp.

Raises
------
ValueError
    An array of another shape, or with numbers that are not finite; layers that the model lacks.

Source: cpp/graph/steer.cpp)")
        .def("value_shape", &value_shape, py::arg("name"),
             "Shape of one token's row of a value: (n_embd,), or (n_head, head_dim).");
}

}  // namespace plait::python
