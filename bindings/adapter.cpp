#include "gguf/keys.h"
#include "gil_release.h"
#include "model.h"
#include "model/control_vector.h"
#include "module.h"
#include "numpy.h"

namespace plait::python {
namespace {

using Names = py::typing::List<py::str>;
using TokenIds = py::typing::List<py::int_>;

py::array_t<float> load_control_vector(const PathLike& path) {
    const std::string name = to_path("path", path);
    follow_log_level();
    ControlVector vector;
    {
        const GilRelease released;
        vector = read_control_vector(*gguf::File::open(name));
    }
    const auto width = static_cast<py::ssize_t>(vector.width);
    const auto n = static_cast<py::ssize_t>(vector.rows.size()) / width;
    return take_vector(std::move(vector.rows), {n, width});
}

Names weights(const PyAdapter& self) {
    py::list names;
    for (const Adapter::Delta& delta : self.adapter->deltas())
        names.append(from_utf8(self.adapter->model().weights().name(delta.base)));
    return names;
}

py::str adapter_repr(const PyAdapter& self) {
    return py::str("<plait.Adapter {!r}: {} weights, alpha={:.6g}>")
        .format(from_utf8(self.adapter->path()), self.adapter->deltas().size(),
                self.adapter->alpha());
}

}  // namespace

PyAdapter load_lora(const PyModel& self, const PathLike& path,
                    const OptionalFlag& rank_stabilized) {
    const std::string file = to_path("path", path);
    std::optional<bool> stabilized;
    if (!rank_stabilized.is_none()) stabilized = to_bool("rank_stabilized", rank_stabilized);
    follow_log_level();
    const std::shared_ptr<const LoadedModel> model = initialized(self.loaded);
    PyAdapter adapter;
    const GilRelease released;
    adapter.adapter = Adapter::open(file, model, stabilized);
    return adapter;
}

void bind_adapter(py::module_& m) {
    py::class_<PyAdapter>(
        m, "Adapter", not_constructible(),
        R"(A low-rank adapter (LoRA, arXiv:2106.09685) of a model; see `Model.load_lora`.

Immutable. It can be active in any number of contexts of its model.

Source: cpp/runtime/steering/adapter.cpp)")
        .def_property_readonly(
            "path", [](const PyAdapter& self) { return from_utf8(self.adapter->path()); },
            "Path of the file.")
        .def_property_readonly(
            "name",
            [](const PyAdapter& self) {
                return from_utf8(self.adapter->file().metadata().string(gguf::keys::kName, ""));
            },
            "Name of the adapter in the file; empty if the file has none.")
        .def_property_readonly(
            "alpha", [](const PyAdapter& self) { return self.adapter->alpha(); },
            "Scale alpha from the file, not yet divided by the rank. 0 if absent: the scale is 1.")
        .def_property_readonly("weights", &weights,
                               "Names of the model tensors that the adapter changes.")
        .def_property_readonly(
            "invocation_tokens",
            [](const PyAdapter& self) -> TokenIds {
                py::list ids;
                for (const int32_t id : self.adapter->invocation_tokens()) ids.append(id);
                return ids;
            },
            R"(Token ids that activate an activated adapter (arXiv:2504.12397); empty for others.

The adapter should be active from these tokens on; set it before decoding them.)")
        .def_property_readonly(
            "metadata",
            [](PyAdapter& self) -> Metadata {
                if (!self.metadata)
                    self.metadata = read_only(to_dict(self.adapter->file().metadata()));
                return self.metadata;
            },
            "Key-value pairs of the file, as in `Model.metadata`; read-only.")
        .def("__repr__", &adapter_repr);

    m.def(
        "check_adapter_unchanged",
        [](const PyAdapter& self) {
            const std::shared_ptr<const Adapter> adapter = self.adapter;
            check_unchanged(adapter->file());
        },
        py::arg("adapter"),
        R"(Raise ModelError if an adapter's path leads to another file than the one that it opened.

Args:
    adapter: The adapter.

Raises:
    ModelError: The file was modified, replaced or removed.)");
    m.def("load_control_vector", &load_control_vector, py::arg("path"),
          R"(Read a control vector from a GGUF file, for use with `Context.set_control_vector`.

Args:
    path: Path of the file.

Returns:
    float32 ndarray of shape (n, n_embd). Row i applies to layer i: direction.i from the file, or
    zeros if the file has none.

Raises:
    ModelError: The file cannot be read or is not a control vector.)");
}

}  // namespace plait::python
