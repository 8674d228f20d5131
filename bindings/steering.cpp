// Methods of Context for adapters, control vectors and edits.
#include "context.h"
#include "model.h"
#include "numpy.h"
#include "sequence.h"

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

// Converts an argument that names sequences. None names none.
std::vector<SequenceRef> sequence_refs(const char* argument, const SequencesArg& value) {
    std::vector<SequenceRef> refs;
    if (value.is_none()) return refs;
    if (PyIndex_Check(value.ptr()) && !is_array(value)) {
        refs.push_back(sequence_ref(argument, value, Access::read));
        return refs;
    }
    if (py::isinstance<py::str>(value) || !py::isinstance<py::iterable>(value))
        wrong_type(argument, "a sequence, an id, or several of them", value);
    for (const py::handle each : value) refs.push_back(sequence_ref(argument, each, Access::read));
    if (refs.empty())
        throw InvalidArgument(text(argument, ": expected at least one sequence, got none"));
    return refs;
}

// Calls f(session, ids) with the ids of sequences whose handles are open and of this context.
template <typename F>
void session_for(const PyContext& self, const std::vector<SequenceRef>& refs, F&& f) {
    initialized(self.shared)->call_with_handles([&](Context& context, const Handles& handles) {
        std::vector<SequenceId> ids;
        for (const SequenceRef& ref : refs) {
            handles.check(ref);
            ids.push_back(ref.id);
        }
        f(*context.session().lock(), ids);
    });
}

void set_lora(const PyContext& self, const AdapterScales& adapters, const SequencesArg& seq) {
    const std::vector<SequenceRef> sequences = sequence_refs("seq", seq);
    std::vector<ScaledAdapter> scaled;
    if (!adapters.is_none()) {
        if (!py::hasattr(adapters, "items"))
            wrong_type("adapters", "a dict of Adapter to scale, or None", adapters);
        for (const py::handle item : adapters.attr("items")()) {
            const auto [adapter, scale] = py::cast<std::pair<py::object, py::object>>(item);
            if (!py::isinstance<PyAdapter>(adapter)) wrong_type("adapters", "an Adapter", adapter);
            scaled.push_back({py::cast<const PyAdapter&>(adapter).adapter,
                              static_cast<float>(to_double("scale", scale))});
        }
    }
    session_for(self, sequences, [&](Session& s, std::span<const SequenceId> ids) {
        s.set_lora(std::move(scaled), ids);
    });
}

void set_control_vector(const PyContext& self, const OptionalArrayLike& vector,
                        const Integer& first_layer, const OptionalInteger& last_layer,
                        const SequencesArg& seq) {
    const std::vector<SequenceRef> sequences = sequence_refs("seq", seq);
    const int64_t first = to_int64("first_layer", first_layer);
    std::optional<int64_t> last;
    if (!last_layer.is_none()) last = to_int64("last_layer", last_layer);
    if (vector.is_none())
        return session_for(self, sequences, [&](Session& s, std::span<const SequenceId> ids) {
            s.set_control_vector({}, 0, first, last, ids);
        });
    const Floats rows = float_array("vector", vector);
    if (rows.ndim() != 2 || rows.size() == 0)
        throw InvalidArgument(
            text("vector: expected the shape (n_layer, n_embd), got ", shape_text(rows)));
    const std::span values(rows.data(), static_cast<size_t>(rows.size()));
    const auto n = static_cast<int64_t>(rows.shape(0));
    session_for(self, sequences, [&](Session& s, std::span<const SequenceId> ids) {
        s.set_control_vector(values, n, first, last, ids);
    });
}

// Replaces rows by the result of a Python function. apply() is called without the GIL.
class FunctionEdit final : public RowFunction {
public:
    explicit FunctionEdit(py::object function) : function_(std::move(function)) {}
    ~FunctionEdit() override {
        const py::gil_scoped_acquire locked;
        function_ = py::object();
    }
    FunctionEdit(const FunctionEdit&) = delete;
    FunctionEdit& operator=(const FunctionEdit&) = delete;

    void apply(std::span<float> rows, const Shape& shape) override {
        if (GilRelease::should_stop()) throw Interrupted();
        const py::gil_scoped_acquire locked;
        const std::vector<py::ssize_t> sizes(shape.dims.begin(), shape.dims.begin() + shape.rank);
        const py::array_t<float> given = take_vector(std::vector(rows.begin(), rows.end()), sizes);
        const std::string expected = shape_text(given);  // the function may change the array
        const py::object returned = function_(given);
        if (returned.is_none())
            throw py::type_error(text(
                "edit: the function returned None; it must return the rows, an array of shape ",
                expected, ", also if it changes them in place"));
        const Floats result = float_array("edit", returned);
        if (std::vector(result.shape(), result.shape() + result.ndim()) != sizes)
            throw InvalidArgument(text("edit: expected an array of shape ", expected,
                                       ", the function returned ", shape_text(result)));
        std::copy_n(result.data(), rows.size(), rows.data());
    }

private:
    py::object function_;
};

py::typing::Tuple<py::int_, py::ellipsis> value_shape(const PyContext& self, const Text& name) {
    const std::string value = to_text("name", name);
    const Shape shape = self.session([&](Session& s) { return s.value_shape(value); });
    py::tuple sizes(shape.rank);
    for (uint8_t i = 0; i < shape.rank; ++i) sizes[i] = shape.dims[i];
    return sizes;
}

}  // namespace

std::unique_ptr<RowFunction> make_row_function(py::handle function) {
    return std::make_unique<FunctionEdit>(py::reinterpret_borrow<py::object>(function));
}

std::vector<float> float_vector(const char* name, py::handle value) {
    const Floats array = float_array(name, value);
    return {array.data(), array.data() + array.size()};
}

void bind_steering(py::class_<PyContext>& context) {
    context
        .def("set_lora", &set_lora, py::arg("adapters"), py::kw_only(), py::arg("seq") = py::none(),
             R"(Set the adapters for all later calls: y = W x + sum of scale * B A x.

Replaces the previous adapters. Changing only the scales, or returning to an earlier set, builds no
plan. Cached keys and values do not change. The context keeps every adapter that it has used in
memory until it is closed.

Sequences may use different adapters in one call. On the CPU, the results of a sequence have the same
bits as if it were decoded alone with the same adapters. A fork starts with the adapters of
`seq=None`, and closing a `Sequence` removes those set for it. `kv.save(seq=...)` records the
adapters of that sequence.

Args:
    adapters: Scale of each adapter, as a dict of Adapter to float. The adapters come from
        `Model.load_lora` of this context's model and are summed in the order in which they were
        loaded. None or {} removes all adapters.
    seq: The sequences that use these adapters: an id, a `Sequence`, or several. Others keep theirs.
        None: all sequences, including those that have separate adapters.

Raises:
    ValueError: An adapter is for another model, a scale is not finite, or a sequence does not
        exist, is closed or belongs to another context. In a later call: a token belongs to several
        sequences that use different adapters.
    UnsupportedError: An adapter changes a weight that this model does not use in a matrix product.

Source: cpp/graph/low_rank.cpp)")
        .def("set_control_vector", &set_control_vector, py::arg("vector"),
             py::arg("first_layer") = 1, py::arg("last_layer") = py::none(), py::kw_only(),
             py::arg("seq") = py::none(),
             R"(Add a control vector to the layer outputs in all later calls (arXiv:2310.01405).

Cached keys and values do not change. No new plan is built when the vector is replaced for
the same layers, or when more sequences get separate vectors. On the CPU, the results of a sequence
have the same bits as if it were decoded alone with the same vector. A fork starts with the vector of
`seq=None`, and closing a `Sequence` removes the vector set for it.

Args:
    vector: float32 array of shape (n_layer, n_embd). Row i is added to the output of layer i,
        blk.i.l_out; trailing rows may be missing. In a model with an encoder, the rows apply to the
        decoder layers. None removes the vector.
    first_layer: First layer that the vector is added to. The default omits layer 0, as in llama.cpp.
    last_layer: Last layer that the vector is added to. None: the last layer of the model.
    seq: The sequences to set the vector for: an id, a `Sequence`, or several. Others keep theirs.
        None: all sequences, including those that have a separate vector.

Raises:
    ValueError: The shape is wrong, a number is not finite, a layer does not exist, or a sequence
        does not exist, is closed or belongs to another context. In a later call: a token belongs to
        several sequences with different vectors, or of which only some have one.

Source: cpp/graph/rewrite.cpp)")
        .def("value_shape", &value_shape, py::arg("name"),
             R"(Return the shape of one token's row of an intermediate value.

Args:
    name: Name of the value, one of value_names().

Returns:
    The shape, such as (n_embd,) or (n_head, head_dim).)");
}

}  // namespace plait::python
